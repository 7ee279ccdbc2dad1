"""What turns products of queries and keys into attention weights."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """The keywords of ``AttentionBackend.attend``."""

    scale: float
    causal: bool
    window: int | None
    softcap: float | None
    sinks: Tensor | None
    """A logit per head that takes part in the softmax and has no value."""
    alibi: Tensor | None
    """A slope per head: what a key loses per position that lies between it and the query."""

    @property
    def is_plain(self) -> bool:
        """Whether a masked softmax of scaled products is all there is."""
        return self.softcap is None and self.sinks is None and self.alibi is None

    def capped(self, scores: Tensor) -> Tensor:
        """The scaled scores under the soft cap, if there is one; scores may be overwritten."""
        if self.softcap is None:
            return scores
        return scores.div_(self.softcap).tanh_().mul_(self.softcap)
