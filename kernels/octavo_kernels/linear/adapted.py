"""Products with LoRA adapters, each token's own, in one launch: for few tokens.

Axis suffixes: T tokens, I inner (input) features, O output features, P rank rows of the pool, Q
parts that are fused in the layer, S splits of the inner axis, R ranks.

What is added is what `octavo_kernels.lora` adds, whose two kernels take 5 to 9 us beside a product
of 11 to 60. Here some warps of each block multiply x by the adapters' ``down``, and the sums by
``up``, while the weight streams in. Sums between the two are float32, rounded once to x's type; a
result is rounded once, and never depends on timing. What is in a pool's rows is finite.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from octavo_kernels.hopper_products import Launch, call, has_rows_of, is_gated, takes
from octavo_kernels.library import ints, library
from octavo_kernels.linear import MAX_TOKENS, RESULT_BYTES, SPEC, fitting_tile
from octavo_kernels.lora import MAX_PARTS, RANK_STEP, TokenGroups

MIN_PART = 64
"""Columns that each of several parts has at least: a tile then lies in two at most."""
MIN_SPLIT, MAX_SPLITS = 256, 16
"""Inputs of a split at least, and into how many the inner axis is cut: each tile reads all sums."""
MAX_UNITS = 2**20
"""Units of a launch: 16 ranks of a token's span, for a split and a part; it cannot number more."""
LONG_ROWS, LONG_SPLITS = 16384, 8
"""From so many rows of a weight on: its stream takes so long that longer splits are in time."""


@dataclass(frozen=True, slots=True)
class Adapters:
    """What `octavo_kernels.lora.shrink` and `expand_` take beside x and the product."""

    down_PQI: Tensor
    up_PO: Tensor
    part_ends: Sequence[int]
    groups: TokenGroups


def kernel_for(
    x_TI: Tensor,
    weight_OI: Tensor,
    epilogue: str,
    residual_TO: Tensor | None,
    adapters: Adapters,
) -> Launch | None:
    """The kernel for a product with adapters; None: `shrink` and `expand_` go around the product.

    That is so for more tokens, where results must be batch-invariant, for what the kernel cannot
    do, and for tensors that do not fit each other.
    """
    groups, (rows, features) = adapters.groups, weight_OI.shape
    down_PQI, up_PO, ends = adapters.down_PQI, adapters.up_PO, list(adapters.part_ends)
    fits = (
        groups.order is not None
        and not groups.batch_invariant
        and 0 < groups.num_tokens <= MAX_TOKENS
        and x_TI.shape == (groups.num_tokens, features)
        and takes(x_TI, weight_OI, gated=is_gated(epilogue))
        and (residual_TO is None or _adds_to(residual_TO, groups.num_tokens, rows))
        and down_PQI.shape == (groups.pool_rows, len(ends), features)
        and up_PO.shape == (groups.pool_rows, rows)
        and all(_streams(weight, x_TI.dtype) for weight in (weight_OI, down_PQI, up_PO))
        and _sum_words(groups, features, rows, len(ends)) // RANK_STEP <= MAX_UNITS
        and _are_parts(ends, rows, gated=is_gated(epilogue))
    )
    return functools.partial(_launch, adapters=adapters) if fits else None


def num_splits(features: int, rows: int) -> int:
    """Into how many parts the inner axis of x times ``down`` is cut; ``rows`` are the weight's."""
    most = MAX_SPLITS if rows < LONG_ROWS else LONG_SPLITS
    return min(most, -(-features // MIN_SPLIT))


def rooms_bytes(num_tokens: int, features: int, num_parts: int, max_rank: int) -> int:
    """What launches of up to so many tokens take for sums, all of a step together."""
    ranks = -(-max_rank // RANK_STEP) * RANK_STEP
    return 2 * 4 * num_splits(features, rows=1) * min(num_tokens, MAX_TOKENS) * num_parts * ranks


def _launch(
    out_TO: Tensor,
    x_TI: Tensor,
    weight_OI: Tensor,
    bias_O: Tensor | None,
    epilogue: str,
    *,
    adapters: Adapters,
) -> None:
    groups, (num_tokens, features) = adapters.groups, x_TI.shape
    num_parts = len(adapters.part_ends)
    words = _sum_words(groups, features, weight_OI.shape[0], num_parts)
    room, stale = groups.rooms.take(words, x_TI.device)
    more = (
        adapters.down_PQI.data_ptr(),
        adapters.up_PO.data_ptr(),
        groups.first_T.data_ptr(),
        groups.rank_T.data_ptr(),
        room.data_ptr(),
        stale.data_ptr(),
        stale.numel() // 4,
        ints(tuple(adapters.part_ends)),
        num_parts,
        groups.max_rank,
        groups.pool_rows,
        num_splits(features, weight_OI.shape[0]),
        groups.settled,
    )
    function = library(SPEC, x_TI.get_device()).octavo_linear_adapted
    tile_tokens = fitting_tile(num_tokens)
    call(function, out_TO, x_TI, weight_OI, bias_O, epilogue, tile_tokens, more=more)


def _sum_words(groups: TokenGroups, features: int, rows: int, num_parts: int) -> int:
    return num_splits(features, rows) * groups.num_tokens * num_parts * groups.max_rank


def _adds_to(residual_TO: Tensor, num_tokens: int, rows: int) -> bool:
    return residual_TO.shape == (num_tokens, rows) and has_rows_of(RESULT_BYTES, residual_TO)


def _streams(weight: Tensor, dtype: torch.dtype) -> bool:
    return weight.dtype is dtype and weight.is_contiguous() and weight.data_ptr() % 16 == 0


def _are_parts(ends: list[int], rows: int, *, gated: bool) -> bool:
    if gated:
        return ends in ([rows], [rows // 2, rows])
    widths = [end - begin for begin, end in pairwise([0, *ends])]
    return (
        1 <= len(ends) <= MAX_PARTS
        and ends[-1] == rows
        and all(end % 16 == 0 for end in ends[:-1])
        and rows % 8 == 0
        and (len(ends) == 1 or min(widths) >= MIN_PART)
    )


__all__ = ["Adapters", "kernel_for", "num_splits", "rooms_bytes"]
