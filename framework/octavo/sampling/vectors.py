"""Hidden states of texts to one vector each.

Axis suffixes: T tokens of the step, R rows, D hidden, W entries of a vector.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Vectors(NamedTuple):
    """What a step of texts leaves on the device."""

    rows_RW: Tensor
    is_finite_R: Tensor


class TextRows(NamedTuple):
    """Where the rows of a step are."""

    starts_R1: Tensor
    lens_R: Tensor
    rows_T: Tensor
    """The row of each token; int64."""
    positions_T: Tensor
    skips_R: Tensor | None
    """Tokens at each row's beginning that count for nothing; None: none."""


def first_places(rows: TextRows) -> Tensor:
    """Where the first token of each row is."""
    return rows.starts_R1[:-1]


def last_places(rows: TextRows) -> Tensor:
    """Where the last token of each row is."""
    return rows.starts_R1[1:] - 1


def all_places(rows: TextRows) -> Tensor:
    """Where any token is."""
    return torch.arange(len(rows.rows_T), device=rows.rows_T.device)


def first_token(hidden_TD: Tensor, rows: TextRows) -> Tensor:
    """The hidden state of each row's first token."""
    return hidden_TD.index_select(0, first_places(rows)).float()


def last_token(hidden_TD: Tensor, rows: TextRows) -> Tensor:
    """The hidden state of each row's last token."""
    return hidden_TD.index_select(0, last_places(rows)).float()


def mean(hidden_TD: Tensor, rows: TextRows) -> Tensor:
    """The mean of each row's tokens, but for those that are skipped."""
    counts_R = rows.lens_R if rows.skips_R is None else rows.lens_R - rows.skips_R
    counts_R = counts_R.clamp(min=1)
    weights_T = counts_R.float().reciprocal().index_select(0, rows.rows_T)
    if rows.skips_R is not None:
        weights_T *= rows.positions_T >= rows.skips_R.index_select(0, rows.rows_T)
    return F.embedding_bag(
        all_places(rows),
        hidden_TD.float(),
        rows.starts_R1.long(),
        mode="sum",
        per_sample_weights=weights_T,
        include_last_offset=True,
    )


COLLECT: Mapping[str, Callable[[Tensor, TextRows], Tensor]] = {
    "first": first_token,
    "last": last_token,
    "mean": mean,
}
"""How a row's vector is made of its tokens, by ``PoolingSetup.collect``; in float32."""
WANTED: Mapping[str, Callable[[TextRows], Tensor]] = {
    "first": first_places,
    "last": last_places,
    "mean": all_places,
}
"""The tokens whose hidden states that takes."""


def finish(vectors_RW: Tensor, widths_R: Tensor | None, unit_lengths_R: Tensor | None) -> Tensor:
    """Cut to the entries that are asked for, which others are zero, and scaled to a length of 1."""
    if widths_R is not None:
        entries_W = torch.arange(vectors_RW.shape[1], device=vectors_RW.device)
        is_cut_RW = (entries_W >= widths_R.unsqueeze(1)) & (widths_R > 0).unsqueeze(1)
        vectors_RW = vectors_RW.masked_fill(is_cut_RW, 0.0)
    if unit_lengths_R is not None:
        lengths_R1 = vectors_RW.norm(dim=1, keepdim=True).clamp(min=1e-12)
        lengths_R1 = torch.where(unit_lengths_R.unsqueeze(1) > 0, lengths_R1, 1.0)
        vectors_RW = vectors_RW / lengths_R1
    return vectors_RW
