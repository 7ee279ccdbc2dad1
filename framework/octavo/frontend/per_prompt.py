"""What a call on many prompts gives each of them: one value for all, or a list of as many."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import NoneType
from typing import cast

from octavo.errors import ParameterError
from octavo.params import LoRARequest, SamplingParams
from octavo.wording import shown


def params_of_each(
    given: SamplingParams | Sequence[SamplingParams] | None, count: int
) -> Sequence[SamplingParams | None]:
    """Return the parameters of each prompt; None are the model's defaults."""
    if not isinstance(given, (list, tuple)):
        return [cast("SamplingParams | None", given)] * count
    _check_length("sampling_params", len(given), count)
    return given


def priorities_of_each(given: Sequence[int] | None, count: int) -> Sequence[int]:
    """Return the priority of each prompt."""
    if not isinstance(given, (list, tuple, NoneType)):
        raise ParameterError(f"priority={shown(given)} must be a list, one for each prompt")
    if given is None:
        return [0] * count
    _check_length("priority", len(given), count)
    return given


def ids_of_each(given: str | Sequence[str] | None, count: int, numbers: Iterator[int]) -> list[str]:
    """Return the id of each request; None takes the next numbers."""
    if given is None:
        return [str(next(numbers)) for _ in range(count)]
    each = list(given) if isinstance(given, (list, tuple)) else [cast("str", given)]
    _check_length("request_id", len(each), count)
    if len(set(map(str, each))) < count:  # the first of them would end, and its outputs be both's
        raise ParameterError("request_id: each request has an id of its own", param="request_id")
    return each


def adapters_of_each(
    given: LoRARequest | Sequence[LoRARequest | None] | None, count: int
) -> list[LoRARequest | None]:
    """Return the adapter of each prompt; None is none."""
    each = cast(
        "list[LoRARequest | None]",
        list(given) if isinstance(given, (list, tuple)) else [given] * count,
    )
    _check_length("lora_request", len(each), count)
    return [None if request is None else LoRARequest.checked(request) for request in each]


def _check_length(name: str, given: int, needed: int) -> None:
    if given != needed:
        raise ParameterError(f"{name} has {given} entries for {needed} prompts; give one for each")
