"""Logits processors: a plugin's own change of the logits, for all rows of a step at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from octavo_registry.model import SequenceTokens


@runtime_checkable
class LogitsProcessor(Protocol):
    """Changes logits between the model and the sampler. It keeps its state by slot on the device.

    Made once a worker, when the engine is started with its name. ``attach`` and ``apply`` may leave
    out trailing arguments that they do not need.
    """

    def __init__(self, vocab_size: int, device: torch.device) -> None: ...

    def attach(
        self,
        slot: int,
        extra_args: Mapping[str, Any],
        prompt_token_ids: Sequence[int],
        output_token_ids: Sequence[int],
    ) -> None:
        """Begin with a sequence that takes a slot, on the host, between steps.

        ``extra_args`` is what the request carries for plugins. A preempted sequence detaches, and
        attaches again when it resumes: ``output_token_ids`` are what it has written so far, mostly
        none. Raising fails that request alone, and the slot is not detached then; an OctavoError
        refuses it as its client's mistake.
        """
        ...

    def detach(self, slot: int) -> None:
        """End with the slot's sequence; the slot will be another's."""
        ...

    def apply(self, logits_RV: Tensor, slots_R: Tensor, so_far: SequenceTokens) -> Tensor:
        """Return changed logits, in place or new; called in each step that has attached slots.

        Must not wait for the device. ``slots_R`` holds each row's slot, int64 on the device; rows
        whose slots were attached with nothing for this processor must come back unchanged. Their
        tokens up to now are lines ``slots_R`` of ``so_far``. A row may be asked for twice for the
        same token. A row of which every logit is -inf, or any is NaN, ends its request with an
        error.
        """
        ...


@runtime_checkable
class ValidatesArgs(Protocol):
    """A logits processor's class that looks at a request before it is queued."""

    @staticmethod
    def validate(extra_args: Mapping[str, Any]) -> None:
        """Raise an OctavoError for what no sequence can be attached with: the client is told.

        Called once a request, in the process that takes requests.
        """
        ...
