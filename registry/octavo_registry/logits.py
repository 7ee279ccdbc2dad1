"""Logits processors: a plugin's own change of the logits, for all rows of a step at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@runtime_checkable
class LogitsProcessor(Protocol):
    """Changes logits between the model and the sampler. It keeps its state by slot on the device.

    Made once a worker, when the engine is started with its name.
    """

    def __init__(self, vocab_size: int, device: torch.device) -> None: ...

    def attach(self, slot: int, extra_args: Mapping[str, Any]) -> None:
        """Begin with a sequence that takes a slot, on the host, between steps.

        ``extra_args`` is what the request carries for plugins. Raising fails that request alone,
        and the slot is not detached then. A preempted sequence detaches, and attaches again when
        it resumes.
        """
        ...

    def detach(self, slot: int) -> None:
        """End with the slot's sequence; the slot will be another's."""
        ...

    def apply(self, logits_RV: Tensor, slots_R: Tensor) -> Tensor:
        """Return changed logits, in place or new; called in each step that has attached slots.

        Must not wait for the device. ``slots_R`` holds each row's slot, int64 on the device; rows
        whose slots were attached with nothing for this processor must come back unchanged.
        """
        ...
