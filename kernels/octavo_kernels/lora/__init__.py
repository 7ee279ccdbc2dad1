"""LoRA adapters beside a linear layer, each token's own: out += (x @ down.T) @ up.

Axis suffixes: T tokens, I inputs, O outputs of all parts side by side, P rank rows of the pool,
Q parts that are fused in the layer (queries, keys and values, say), S splits of the inner axis,
R ranks.

An adapter of rank r owns r consecutive rank rows of the pool, the same in every layer, so that a
token's adapter is (first row, rank): ranks of any size stand side by side. What scales the product
is in ``up``; parts that an adapter leaves alone are zero there.

On CUDA nothing waits for the device, and a recorded graph follows whatever first rows and ranks its
tensors hold. `group_tokens` sorts the step's tokens by adapter, once for all layers. `shrink` comes
before the layer's own product: it runs while that one's weights already stream in. `expand_` comes
behind it. Both take 16-bit floats to the tensor cores from Ampere on, if I and the parts' sizes are
multiples of 8 and rows begin at multiples of 16 bytes; all else is right too, and slow. Sums
between the two are float32, rounded once to x's type, as PEFT's are. A result never depends on
timing, with ``batch_invariant`` not on the other tokens either. On the CPU the reference computes.
Where few tokens are multiplied, `octavo_kernels.linear.adapted` does all in the product's launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from octavo_kernels.build import I, KernelSpec, L, P
from octavo_kernels.library import DTYPE_CODES, FLOATS, ints, library, stream_of
from octavo_kernels.lora import reference

SPEC = KernelSpec(
    name="lora",
    functions={
        "octavo_lora_group": (P, P, P, I, I, I, I, I),
        "octavo_lora_shrink": (P, P, P, P, P, P, I, I, I, I, I, I, I, I, I, I, I, L),
        "octavo_lora_expand": (P, P, P, P, P, P, P, I, I, I, I, I, I, I, I, I, L),
    },
    sources=("kernel.cu", "group.cu", "tensor_cores.cu", "plain.cu"),
)

MAX_PARTS = 8
"""What the kernels take."""
MAX_POOL_ROWS = 10240
"""What the kernel that groups tokens takes, in shared memory."""

FEW_TOKENS = 256
"""Up to so many, tiles of 16 tokens: a decode step has few of each adapter. Then tiles of 64."""
TILE_TOKENS = (16, 64)
RANK_STEP = 16
"""Sums are kept for multiples of so many ranks."""

TARGET_UNITS = 256
"""The inner axis is split until so many blocks have work if all tokens are of one adapter."""
MIN_SPLIT, INVARIANT_SPLIT = 512, 2048
"""Inputs of a split: at least, and where they may not depend on the number of tokens."""


class SumRooms:
    """Where launches that shrink and expand at once have their sums, by turns in two rooms.

    A room is zeros when its turn comes: of two launches, the later one sweeps the earlier's.
    """

    def __init__(self) -> None:
        self._rooms: Tensor | None = None
        self._turn = self._used = 0

    def take(self, words: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """A room of so many words of zeros, and that of the launch before, to be swept."""
        if self._rooms is None or self._rooms.shape[1] < words:
            self._rooms = None  # both sizes at once would be more than was planned
            self._rooms = torch.zeros((2, words), dtype=torch.int32, device=device)
            self._used = 0
        self._turn = 1 - self._turn
        room, stale = self._rooms[self._turn, :words], self._rooms[1 - self._turn, : self._used]
        self._used = words
        return room, stale


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenGroups:
    """A step's tokens by adapter, made by `group_tokens`."""

    first_T: Tensor
    rank_T: Tensor
    pool_rows: int
    max_rank: int
    batch_invariant: bool
    settled: bool
    tile_tokens: int
    max_tiles: int
    order: Tensor | None
    """On CUDA: the number of tiles, four ints of each, and the tokens sorted by adapter."""
    runs: list[reference.Run] = field(default_factory=list)
    """On the CPU."""
    rooms: SumRooms = field(default_factory=SumRooms)

    @property
    def num_tokens(self) -> int:
        """Tokens of the step, whether they have an adapter or not."""
        return self.first_T.shape[0]


def group_tokens(
    first_T: Tensor,
    rank_T: Tensor,
    *,
    pool_rows: int,
    max_rank: int | None = None,
    batch_invariant: bool = False,
    settled: bool = False,
) -> TokenGroups:
    """Sort a step's tokens by adapter, for all layers that have a pool of so many rank rows.

    Both tensors are int32. A token without adapter has a first row of -1 or a rank of 0; tokens of
    one first row have one rank. ``max_rank`` bounds the ranks there are (None: the pool's rows) and
    with them the memory between `shrink` and `expand_`. On CUDA the caller has seen to it that runs
    lie in the pool: a token whose run does not gets nothing added.

    ``settled`` promises that an ordinary launch, any of PyTorch's, stands between this and the
    groups' first use, and between it and the last write to the pools. Kernels then fetch groups and
    rank rows while what stands in front of them still runs.
    """
    num_tokens, device = first_T.shape[0], first_T.device
    for name, tensor in (("first rows", first_T), ("ranks", rank_T)):
        if tensor.shape != (num_tokens,) or tensor.dtype is not torch.int32:
            raise ValueError(
                f"group_tokens: the {name}, {list(tensor.shape)} of {tensor.dtype}, must be "
                f"[{num_tokens}] of torch.int32"
            )
    if not 1 <= pool_rows <= MAX_POOL_ROWS or (max_rank is not None and max_rank < 1):
        raise ValueError(
            f"group_tokens: a pool of {pool_rows} rank rows and max_rank={max_rank}: there must be "
            f"1 to {MAX_POOL_ROWS} rows, and a rank of at least 1"
        )
    max_rank = min(max_rank or pool_rows, pool_rows)
    kept_ranks = -(-max_rank // RANK_STEP) * RANK_STEP
    tile_tokens = TILE_TOKENS[0 if batch_invariant or num_tokens <= FEW_TOKENS else 1]
    max_tiles = num_tokens // tile_tokens + min(num_tokens, pool_rows)
    order, runs = None, []
    if device.type == "cuda":
        order = torch.empty(4 + 4 * max_tiles + num_tokens, dtype=torch.int32, device=device)
        first_T, rank_T = first_T.contiguous(), rank_T.contiguous()
        library(SPEC, device.index).octavo_lora_group(
            order.data_ptr(),
            first_T.data_ptr(),
            rank_T.data_ptr(),
            num_tokens,
            pool_rows,
            kept_ranks,
            tile_tokens,
            max_tiles,
            stream_of(device.index),
        )
    else:
        runs = reference.runs_of(first_T, rank_T)
        for run in runs:
            if run.first + run.rank > pool_rows or run.rank > max_rank:
                raise ValueError(
                    f"group_tokens: rank rows {run.first} to {run.first + run.rank - 1} are not in "
                    f"a pool of {pool_rows}, or more than max_rank={max_rank}"
                )
    return TokenGroups(
        first_T=first_T,
        rank_T=rank_T,
        pool_rows=pool_rows,
        max_rank=kept_ranks,
        batch_invariant=batch_invariant,
        settled=settled,
        tile_tokens=tile_tokens,
        max_tiles=max_tiles,
        order=order,
        runs=runs,
    )


def shrink(x_TI: Tensor, down_PQI: Tensor, groups: TokenGroups) -> Tensor:
    """Return what `expand_` takes: sums [S, T, Q, R] in float32, arbitrary past a token's rank."""
    if (
        x_TI.dim() != 2
        or down_PQI.dim() != 3
        or x_TI.shape != (groups.num_tokens, down_PQI.shape[2])
        or not 1 <= down_PQI.shape[1] <= MAX_PARTS
        or down_PQI.shape[0] != groups.pool_rows
    ):
        raise ValueError(
            f"shrink: x {list(x_TI.shape)} and down {list(down_PQI.shape)} must be "
            f"[{groups.num_tokens}, I] and [{groups.pool_rows}, parts, I], with at most "
            f"{MAX_PARTS} parts"
        )
    _check_types("shrink", x_TI, down_PQI)
    if groups.order is None:
        return reference.shrink(x_TI, down_PQI, groups.runs, groups.max_rank)
    (num_tokens, features), num_parts = x_TI.shape, down_PQI.shape[1]
    splits = num_splits(num_tokens, features, groups.tile_tokens, groups.batch_invariant)
    sums_STQR = torch.empty(
        (splits, num_tokens, num_parts, groups.max_rank), dtype=torch.float32, device=x_TI.device
    )
    if sums_STQR.numel():
        library(SPEC, x_TI.get_device()).octavo_lora_shrink(
            sums_STQR.data_ptr(),
            x_TI.data_ptr(),
            down_PQI.data_ptr(),
            groups.first_T.data_ptr(),
            groups.rank_T.data_ptr(),
            groups.order.data_ptr(),
            DTYPE_CODES[x_TI.dtype],
            _has_rows_of_16_bytes(x_TI) and _has_rows_of_16_bytes(down_PQI),
            num_tokens,
            features,
            num_parts,
            groups.max_rank,
            groups.pool_rows,
            splits,
            groups.tile_tokens,
            groups.max_tiles,
            groups.settled,
            x_TI.stride(0),
            stream_of(x_TI.get_device()),
        )
    return sums_STQR


def expand_(
    out_TO: Tensor,
    sums_STQR: Tensor,
    up_PO: Tensor,
    part_ends: Sequence[int],
    groups: TokenGroups,
) -> Tensor:
    """Add each token's sums times its adapter's ``up`` to ``out`` in place, and return it.

    Part q has the columns ``part_ends[q - 1]`` (or 0) to ``part_ends[q]``.
    """
    num_tokens, ends = groups.num_tokens, list(part_ends)
    if (
        out_TO.dim() != 2
        or up_PO.shape != (groups.pool_rows, out_TO.shape[1])
        or out_TO.shape[0] != num_tokens
        or any(begin >= end for begin, end in pairwise([0, *ends]))
        or ends[-1:] != [out_TO.shape[1]]
    ):
        raise ValueError(
            f"expand_: out {list(out_TO.shape)}, up {list(up_PO.shape)} and parts that end at "
            f"{ends} must be [{num_tokens}, O], [{groups.pool_rows}, O], and rise to O"
        )
    if (
        sums_STQR.dtype is not torch.float32
        or sums_STQR.shape[1:] != (num_tokens, len(ends), groups.max_rank)
        or not sums_STQR.is_contiguous()
    ):
        raise ValueError(
            f"expand_: sums {list(sums_STQR.shape)} of {sums_STQR.dtype} are not what shrink made "
            f"of {num_tokens} tokens and {len(ends)} parts"
        )
    _check_types("expand_", out_TO, up_PO)
    if groups.order is None:
        return reference.expand_(out_TO, sums_STQR, up_PO, ends, groups.runs)
    if num_tokens:
        aligned = all(column % 8 == 0 for column in ends)
        library(SPEC, out_TO.get_device()).octavo_lora_expand(
            out_TO.data_ptr(),
            sums_STQR.data_ptr(),
            up_PO.data_ptr(),
            groups.first_T.data_ptr(),
            groups.rank_T.data_ptr(),
            groups.order.data_ptr(),
            ints(tuple(ends)),
            DTYPE_CODES[out_TO.dtype],
            aligned and _has_rows_of_16_bytes(out_TO) and _has_rows_of_16_bytes(up_PO),
            num_tokens,
            len(ends),
            groups.max_rank,
            groups.pool_rows,
            sums_STQR.shape[0],
            groups.max_tiles,
            groups.settled,
            out_TO.stride(0),
            stream_of(out_TO.get_device()),
        )
    return out_TO


def add_lora_(
    out_TO: Tensor,
    x_TI: Tensor,
    down_PQI: Tensor,
    up_PO: Tensor,
    part_ends: Sequence[int],
    token_first_T: Tensor,
    token_rank_T: Tensor,
) -> Tensor:
    """`group_tokens`, `shrink` and `expand_` in one: for a layer on its own."""
    groups = group_tokens(token_first_T, token_rank_T, pool_rows=down_PQI.shape[0])
    return expand_(out_TO, shrink(x_TI, down_PQI, groups), up_PO, part_ends, groups)


def num_splits(num_tokens: int, features: int, tile_tokens: int, batch_invariant: bool) -> int:
    """Into how many parts `shrink` cuts the inner axis on CUDA."""
    if batch_invariant:
        return max(1, -(-features // INVARIANT_SPLIT))
    tiles = -(-num_tokens // tile_tokens)
    splits = min(-(-features // MIN_SPLIT), TARGET_UNITS // max(tiles, 1))
    return max(1, splits)


def sums_bytes(
    max_tokens: int,
    features: int,
    num_parts: int,
    max_rank: int,
    *,
    batch_invariant: bool = False,
) -> int:
    """What `shrink` allocates at most on CUDA in steps of up to so many tokens."""
    split = INVARIANT_SPLIT if batch_invariant else MIN_SPLIT
    rows = max(1, -(-features // split)) * max_tokens
    if not batch_invariant:
        rows = min(rows, max(TARGET_UNITS * max(TILE_TOKENS), max_tokens))
    return 4 * rows * num_parts * -(-max_rank // RANK_STEP) * RANK_STEP


def _check_types(function: str, activations: Tensor, weight: Tensor) -> None:
    if (
        activations.dtype not in FLOATS
        or weight.dtype is not activations.dtype
        or activations.stride(1) != 1
        or not weight.is_contiguous()
    ):
        raise ValueError(
            f"{function}: {activations.dtype} with strides {activations.stride()} and a pool of "
            f"{weight.dtype} with strides {weight.stride()} must be float32, float16 or bfloat16 "
            "alike, with contiguous rows and a contiguous pool"
        )


def _has_rows_of_16_bytes(tensor: Tensor) -> bool:
    """Whether rows begin at multiples of 16 bytes, and the last axis is made of such pieces."""
    step = 16 // tensor.element_size()
    return (
        tensor.data_ptr() % 16 == 0
        and tensor.shape[-1] % step == 0
        and all(stride % step == 0 for stride in tensor.stride()[:-1])
    )


__all__ = [
    "FEW_TOKENS",
    "MAX_PARTS",
    "MAX_POOL_ROWS",
    "SPEC",
    "TokenGroups",
    "add_lora_",
    "expand_",
    "group_tokens",
    "num_splits",
    "shrink",
    "sums_bytes",
]
