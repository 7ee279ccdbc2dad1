"""Log probabilities of chosen and likeliest tokens, from the logits as the model gave them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from octavo_kernels.sample.chunks import rows_together
from octavo_kernels.sample.likeliest import likeliest


@dataclass(slots=True)
class TokenLogprobTensors:
    """Log probabilities by row: the chosen token first, then the likeliest; on the device."""

    token_ids_RK1: Tensor
    logprobs_RK1: Tensor
    ranks_R: Tensor
    """The chosen token's rank: 1 plus how many tokens are strictly likelier."""

    def at(self, rows: Tensor) -> TokenLogprobTensors:
        """The log probabilities of some rows."""
        return TokenLogprobTensors(
            token_ids_RK1=self.token_ids_RK1.index_select(0, rows),
            logprobs_RK1=self.logprobs_RK1.index_select(0, rows),
            ranks_R=self.ranks_R.index_select(0, rows),
        )


def token_logprobs(
    logits_RV: Tensor,
    tokens_R: Tensor,
    k: int,
    *,
    process: Callable[[slice], Tensor] | None = None,
    normalized: bool = True,
) -> TokenLogprobTensors:
    """Log-softmax in float32 of the chosen token and the ``k`` likeliest, at most V.

    ``process`` gives rows' logits in the place of theirs; not ``normalized`` are logits themselves.
    """
    count = min(k, logits_RV.shape[1])
    num_together = rows_together(logits_RV)
    parts = []
    for start in range(0, max(1, len(tokens_R)), num_together):  # of no rows, none
        rows = slice(start, start + num_together)
        logits_GV = logits_RV[rows] if process is None else process(rows)
        chosen_G1 = tokens_R[rows, None].to(torch.int64)
        parts.append(_part_logprobs(logits_GV, chosen_G1, count, normalized=normalized))
    ids, logprobs, ranks = (torch.cat(column) for column in zip(*parts, strict=True))
    return TokenLogprobTensors(ids, logprobs, ranks)


def _part_logprobs(
    logits_GV: Tensor, chosen_G1: Tensor, count: int, *, normalized: bool
) -> tuple[Tensor, ...]:
    logits_GV = logits_GV.to(torch.float32)
    ids_GK1 = torch.cat((chosen_G1, likeliest(logits_GV, count)), dim=1)
    # Not logsumexp, whose order of summation depends on how many rows there are.
    scores_GV = logits_GV.log_softmax(dim=1) if normalized else logits_GV
    logprobs_GK1 = scores_GV.gather(1, ids_GK1)
    ranks_G = (logits_GV > logits_GV.gather(1, chosen_G1)).sum(dim=1) + 1
    return ids_GK1, logprobs_GK1, ranks_G
