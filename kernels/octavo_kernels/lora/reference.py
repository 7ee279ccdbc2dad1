"""What adding adapters is: one pair of products for each run of rank rows that tokens use."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Run:
    """One adapter's rank rows and the tokens that use them."""

    first: int
    rank: int
    tokens: Tensor | slice
    """A slice if they are all of the step's."""


def runs_of(first_T: Tensor, rank_T: Tensor) -> list[Run]:
    """Group tokens by adapter; those of rank 0 or a first row of -1 have none."""
    tokens_of: dict[tuple[int, int], list[int]] = {}
    for token, run in enumerate(zip(first_T.tolist(), rank_T.tolist(), strict=True)):
        if run[0] >= 0 and run[1] > 0:
            tokens_of.setdefault(run, []).append(token)
    num_tokens, device = first_T.shape[0], first_T.device
    return [
        Run(
            first,
            rank,
            slice(None) if len(tokens) == num_tokens else torch.tensor(tokens, device=device),
        )
        for (first, rank), tokens in tokens_of.items()
    ]


def shrink(x_TI: Tensor, down_PQI: Tensor, runs: Iterable[Run], max_rank: int) -> Tensor:
    """Return x times its adapter's down, [1, T, Q, max_rank], zero past an adapter's rank."""
    num_tokens, num_parts = x_TI.shape[0], down_PQI.shape[1]
    sums_STQR = torch.zeros(1, num_tokens, num_parts, max_rank, device=x_TI.device)
    for run in runs:
        down_RQI = down_PQI[run.first : run.first + run.rank].float()
        product_NRQ = (x_TI[run.tokens].float() @ down_RQI.flatten(0, 1).mT).unflatten(
            1, down_RQI.shape[:2]
        )
        sums_STQR[0, run.tokens, :, : run.rank] = product_NRQ.mT
    return sums_STQR


def expand_(
    out_TO: Tensor,
    sums_STQR: Tensor,
    up_PO: Tensor,
    part_ends: Sequence[int],
    runs: Iterable[Run],
) -> Tensor:
    """Add the sums, rounded as x is, times their adapter's up to each part's columns."""
    for run in runs:
        low_NQR = sums_STQR[:, run.tokens, :, : run.rank].sum(0).to(out_TO.dtype).float()
        up_RO = up_PO[run.first : run.first + run.rank].float()
        parts = up_RO.tensor_split(list(part_ends[:-1]), dim=1)
        added_NO = torch.cat([low_NQR[:, q] @ up for q, up in enumerate(parts)], dim=1)
        out_TO[run.tokens] = (out_TO[run.tokens].float() + added_NO).to(out_TO.dtype)
    return out_TO
