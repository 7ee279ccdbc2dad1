"""Logits processors of plugins, as a step runs them."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from octavo.errors import BadRequestError, OctavoError, ParameterError, PluginError
from octavo.steps.plan import Attached
from octavo_registry import LazyRegistry, LogitsProcessor, PluginHost, SequenceTokens
from octavo_registry.faults import one_line

log = logging.getLogger(__name__)


class GuardedProcessor:
    """One processor, whose failures are counted and named, and the slots it is attached to."""

    def __init__(
        self, name: str, host: PluginHost, *, vocab_size: int, device: torch.device
    ) -> None:
        self._plugin = host.logits_processors.info(name).plugin
        self._call = f"logits processor {name!r}"
        self._faults = host.faults
        self._inner: LogitsProcessor = host.logits_processors.make(name, vocab_size, device)
        with self._faults.guard(self._plugin, self._call, request=True):
            self._attach = without_trailing(self._inner.attach, most=4)
            self._apply = without_trailing(self._inner.apply, most=3)
        self._slots: set[int] = set()

    def attach(self, new: Attached) -> None:
        """Begin with a slot's new sequence."""
        ids: list[int] = new.tokens.tolist()
        first = new.num_prompt_tokens
        with self._faults.guard(self._plugin, f"{self._call}, attach", request=True):
            try:
                self._attach(new.slot, new.sampling.extra_args, ids[:first], ids[first:])
            except (BadRequestError, PluginError):
                raise
            except OctavoError as error:
                raise ParameterError(str(error), param="extra_args") from error
        self._slots.add(new.slot)

    def detach(self, slot: int) -> None:
        """End with a slot's sequence; nothing where its ``attach`` has raised or never came.

        A failure is counted and logged: no request is left to fail for it.
        """
        if slot not in self._slots:
            return
        self._slots.remove(slot)
        try:
            with self._faults.guard(self._plugin, f"{self._call}, detach", request=True):
                self._inner.detach(slot)
        except Exception as error:
            log.warning("%s failed to detach slot %d: %s", self._call, slot, one_line(error))

    def apply(self, logits_RV: Tensor, slots_R: Tensor, so_far: SequenceTokens) -> Tensor:
        """Change the logits of a step's rows."""
        with self._faults.guard(self._plugin, f"{self._call}, apply", request=True):
            changed_RV = self._apply(logits_RV, slots_R, so_far)
            # A wider one would give ids out of the vocabulary, which break a device at the next
            # step; another number of rows would give a row's tokens to another.
            if (
                not isinstance(changed_RV, Tensor)
                or changed_RV.shape != logits_RV.shape
                or changed_RV.dtype != logits_RV.dtype
                or changed_RV.device != logits_RV.device
            ):
                raise TypeError(
                    f"apply returned {_described(changed_RV)}, not {_described(logits_RV)}"
                )
        return changed_RV.contiguous()


class LogitsCheck:
    """Finds rows that give no token, without a word to the host, and who made them so."""

    def __init__(self, num_rows: int, device: torch.device) -> None:
        self.unusable_R = torch.zeros(num_rows, dtype=torch.int32, device=device)
        self._next = 1

    def look(self, logits_RV: Tensor) -> Tensor:
        """Note the rows that are unusable now; returns the logits with zeros in these."""
        found_R = ~(logits_RV.amax(dim=1) > -torch.inf)  # so that NaN counts
        self.unusable_R += found_R * (self.unusable_R == 0) * self._next  # the first is to blame
        self._next += 1
        return logits_RV.masked_fill_(found_R.unsqueeze(1), 0.0)


class StepFaults:
    """Says which plugin made a step go wrong, and counts it as its failure."""

    def __init__(self, host: PluginHost, architecture: str, processors: Sequence[str]) -> None:
        self._host = host
        registries: tuple[LazyRegistry[Any], ...] = (
            host.models,
            *(host.logits_processors for _ in processors),
        )
        names = (architecture, *processors)
        self._makers = list(zip(registries, names, strict=True))

    def name(self, error: BaseException) -> BaseException:
        """What a step has raised, with the plugin in whose code it came up."""
        return self._host.blame(error, "a step")

    def blame_vector(self) -> Exception:
        """Who made a text's vector one that is not finite."""
        return self._counted(1, "forward", "a text's vector is NaN or infinite")

    def blame(self, number: int) -> Exception:
        """Who left a row logits that nothing can be sampled by, from ``StepResult.unusable_RK``."""
        what = "a row's logits are NaN, or all are -inf: no token can be sampled"
        return self._counted(number, "apply" if number > 1 else "logits", what)

    def _counted(self, number: int, method: str, what: str) -> Exception:
        registry, name = self._makers[number - 1]
        call = f"{registry.kind} {name!r}, {method}"
        try:
            with self._host.faults.guard(registry.info(name).plugin, call, request=True):
                raise ValueError(what)
        except PluginError as error:
            return error


def without_trailing(method: Callable[..., Any], *, most: int) -> Callable[..., Any]:
    """The method, called with as many of ``most`` arguments as it takes, two at least."""
    signature = inspect.signature(method)
    for count in range(most, 1, -1):
        try:
            signature.bind(*[None] * count)
        except TypeError:
            continue
        return method if count == most else _Shorter(method, count)
    raise TypeError(f"{method.__qualname__} takes {signature}, which are not 2 to {most}")


@dataclass(frozen=True, slots=True)
class _Shorter:
    method: Callable[..., Any]
    num_arguments: int

    def __call__(self, *args: Any) -> Any:
        return self.method(*args[: self.num_arguments])


def _described(value: object) -> str:
    if isinstance(value, Tensor):
        return f"{value.dtype} of shape {list(value.shape)} on {value.device}"
    return type(value).__name__
