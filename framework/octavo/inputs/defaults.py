"""What a model's generation_config.json and config.json say about sampling and its end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from octavo.errors import ModelError, ParameterError
from octavo.params import SamplingParams

_FIELDS = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}


def default_sampling_params(generation_config: Mapping[str, Any]) -> SamplingParams:
    """Parameters for callers who give none.

    As in vLLM, ``do_sample`` is not read: a temperature of 0 alone means the likeliest token.
    """
    given = {
        ours: generation_config[theirs]
        for theirs, ours in _FIELDS.items()
        if generation_config.get(theirs) is not None
    }
    try:
        return SamplingParams(**given)
    except ParameterError as error:
        raise ModelError(
            f'generation_config.json: {error}; correct it or give generation_config="none"'
        ) from error


def eos_token_ids(
    config: Mapping[str, Any],
    generation_config: Mapping[str, Any],
    tokenizer_eos: int | None = None,
) -> tuple[int, ...]:
    """Ids that end a sequence: generation_config.json's or else config.json's, and the tokenizer's.

    The tokenizer's is added because chat models often name their end of turn there alone.
    """
    source = "generation_config.json"
    given = generation_config.get("eos_token_id")
    if given is None:
        source = "config.json"
        given = config.get("eos_token_id")
    ids: list[Any] = list(given) if isinstance(given, Iterable) else [given]
    ids = [token for token in (*ids, tokenizer_eos) if token is not None]
    for token in ids:
        if type(token) is not int:
            raise ModelError(f"{source}: eos_token_id={given!r} must be an integer or a list")
    return tuple(dict.fromkeys(ids))
