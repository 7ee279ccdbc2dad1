"""Speculative decoding: something cheap proposes tokens, which the model checks in one step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(slots=True, kw_only=True)
class DraftInput:
    """What a proposal may use, on the device; L is the context length. Nothing is to be kept."""

    tokens_RL: Tensor
    """Prompt and output of each row, padded at the end."""
    lengths_R: Tensor
    hidden_RD: Tensor
    """The model's last hidden state of each row."""
    slots_R: Tensor
    """Which state row each row has, for speculators that keep state."""


@runtime_checkable
class Speculator(Protocol):
    """Proposes continuations. Made once a worker: ``Speculator(spec: ModelSpec)``."""

    def propose(self, draft: DraftInput, num_tokens: int) -> Tensor:
        """Return [R, num_tokens] token ids, -1 from where a row has no proposal.

        Called after each step of a batch with speculation; must not wait for the device.
        """
        ...
