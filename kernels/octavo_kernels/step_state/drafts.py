"""Rows with drafts: where their rows of logits are, and what of the samples counts."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(slots=True, kw_only=True)
class DraftRows:
    """A row of logits for the next token of each row that samples, and one behind each draft."""

    starts_N1: Tensor
    """Where those of each row begin, and where the last ones end; int32."""
    tokens_NK: Tensor
    """Written: the samples that count, then -1; int32. No row yields more than K."""
    counts_N: Tensor
    """Written: how many count; int32."""

    @classmethod
    def empty(cls, starts_N1: Tensor, most_tokens: int) -> DraftRows:
        """Room for what rows yield, not written yet."""
        num_sampled = len(starts_N1) - 1
        return cls(
            starts_N1=starts_N1,
            tokens_NK=starts_N1.new_empty(num_sampled, most_tokens),
            counts_N=starts_N1.new_empty(num_sampled),
        )

    @property
    def most_tokens(self) -> int:
        """Tokens that a row yields at most."""
        return self.tokens_NK.shape[1]
