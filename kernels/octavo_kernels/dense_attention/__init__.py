"""Attention of each token to all tokens of its run, without a cache: of encoders.

Axis suffixes: P tokens (patches) of all runs, H heads, E entries of a head.

The kernel takes float16 and bfloat16 on Hopper GPUs, for heads of up to `MAX_HEAD_DIM` entries, a
multiple of 8, if a token's heads are contiguous and tokens begin at multiples of 16 bytes. It
computes on 64, 80, 96 or 128 entries, the others being zeros, which are never in memory. A token's
result does not depend on other runs. All else goes to PyTorch's attention, on any device.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo_kernels.build import I, KernelSpec, L, P
from octavo_kernels.dense_attention import reference
from octavo_kernels.hopper_products import num_processors
from octavo_kernels.library import DTYPE_CODES, library, stream_of

SPEC = KernelSpec(
    name="dense_attention",
    functions={"octavo_dense_attention": (P, P, P, P, P, L, L, L, I, I, I, I, I, I)},
    arches=("90a",),
)

MAX_HEAD_DIM = 128


def dense_attention(
    q_PHE: Tensor,
    k_PHE: Tensor,
    v_PHE: Tensor,
    lengths: Sequence[int],
    seen: Sequence[int] | None = None,
) -> Tensor:
    """Return the attention [P, H, E] of runs of so many tokens each, scores scaled by E ** -0.5.

    Of each run only the first ``seen`` tokens are attended to, None: all. The runs of the last
    calls are remembered on the device, so that a tower's layers share them; a CUDA graph must not
    outlive that. Calls on two streams of a device must not overlap.
    """
    if not q_PHE.shape == k_PHE.shape == v_PHE.shape:
        raise ValueError(
            f"dense_attention: queries {list(q_PHE.shape)}, keys {list(k_PHE.shape)} and values "
            f"{list(v_PHE.shape)} differ"
        )
    num_tokens, heads, head_dim = q_PHE.shape
    runs = tuple(lengths)
    keys = runs if seen is None else tuple(seen)
    check(runs, keys, num_tokens)
    if not takes(q_PHE, k_PHE, v_PHE):
        return reference.dense_attention(q_PHE, k_PHE, v_PHE, runs, keys)
    device_index = q_PHE.get_device()
    tile_rows = tile_rows_of(head_dim)
    rows = work(runs, keys, tile_rows, device_index)
    out_PHE = torch.empty_like(q_PHE, memory_format=torch.contiguous_format)
    library(SPEC, device_index).octavo_dense_attention(
        q_PHE.data_ptr(),
        k_PHE.data_ptr(),
        v_PHE.data_ptr(),
        out_PHE.data_ptr(),
        rows.data_ptr(),
        q_PHE.stride(0),
        k_PHE.stride(0),
        v_PHE.stride(0),
        num_tokens,
        len(rows) - 1,
        heads,
        head_dim,
        tile_rows,
        DTYPE_CODES[q_PHE.dtype],
        stream_of(device_index),
    )
    return out_PHE


def takes(*tensors: Tensor) -> bool:
    """Whether the kernel computes on queries, keys and values of one shape."""
    first = tensors[0]
    return (
        first.is_cuda
        and num_processors(first.get_device()) > 0
        and all(each.dtype is first.dtype and fits(each) for each in tensors)
    )


def fits(tensor_PHE: Tensor) -> bool:
    """Whether the kernel can read a tensor, on a device for which it is made."""
    head_dim = tensor_PHE.shape[2]
    token_stride, *strides = tensor_PHE.stride()
    return (
        tensor_PHE.dtype in (torch.bfloat16, torch.float16)
        and head_dim % 8 == 0
        and head_dim <= MAX_HEAD_DIM
        and strides == [head_dim, 1]
        and token_stride % 8 == 0
        and tensor_PHE.data_ptr() % 16 == 0
        and tensor_PHE.numel() > 0
    )


@functools.lru_cache(maxsize=64)
def check(lengths: tuple[int, ...], seen: tuple[int, ...], num_tokens: int) -> None:
    """Raise for runs that are not of that many tokens, or in which nothing is seen."""
    if (
        len(lengths) != len(seen)
        or sum(lengths) != num_tokens
        or any(not 1 <= keys <= length for keys, length in zip(seen, lengths, strict=True))
    ):
        raise ValueError(
            f"dense_attention: runs of {list(lengths)} tokens, of which {list(seen)} are seen, are "
            f"not {num_tokens} tokens, or none or too many of one are seen"
        )


def tile_rows_of(head_dim: int) -> int:
    """How many queries the kernel works on together: kRows in tiles.cuh."""
    return 192 if head_dim <= 64 else 128


def tiles(lengths: Sequence[int], seen: Sequence[int], tile_rows: int) -> NDArray[np.int32]:
    """A head's tiles, those with most keys first: first token, tokens, first key, keys."""
    starts = np.cumsum([0, *lengths])[:-1].tolist()
    runs = sorted(zip(starts, lengths, seen, strict=True), key=lambda run: -run[2])
    return np.array(
        [
            (start + offset, min(tile_rows, length - offset), start, keys)
            for start, length, keys in runs
            for offset in range(0, length, tile_rows)
        ],
        dtype=np.int32,
    )


@functools.lru_cache(maxsize=64)
def work(
    lengths: tuple[int, ...], seen: tuple[int, ...], tile_rows: int, device_index: int
) -> Tensor:
    """On the device: a row that counts what blocks take, from zero to zero, then the tiles."""
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "dense_attention: these runs would be copied to the device only when the CUDA graph "
            "that is being captured is replayed; call it once before"
        )
    rows = np.concatenate([np.zeros((1, 4), dtype=np.int32), tiles(lengths, seen, tile_rows)])
    # Only a copy from pinned memory leaves the host free while earlier kernels run.
    pinned = torch.from_numpy(rows).pin_memory()
    return pinned.to(f"cuda:{device_index}", non_blocking=True)


__all__ = ["MAX_HEAD_DIM", "SPEC", "dense_attention", "takes"]
