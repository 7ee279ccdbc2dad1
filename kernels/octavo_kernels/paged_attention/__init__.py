"""Attention over a paged cache in the layout of PagedAttention, on any CUDA device; v1 and v2.

Axis suffixes: T tokens, H query heads, K key/value heads, D head dim, B blocks, C pieces of a key
of 16 bytes, X entries of a piece, N tokens of a block, R rows, S lines of the block tables.
"""

from __future__ import annotations

import functools
from ctypes import c_int
from typing import Any

import torch
from torch import Tensor

from octavo_kernels.build import F, I, KernelSpec, P
from octavo_kernels.library import DTYPE_CODES, library, stream_of
from octavo_kernels.paged_attention import reference
from octavo_kernels.paged_attention.sparse import BlockSparse

SPEC = KernelSpec(
    name="paged_attention",
    sources=("kernel.cu", "float32.cu", "float16.cu", "bfloat16.cu"),
    functions={"octavo_paged_attention": (*(P,) * 13, *(I,) * 4, *(F,) * 3)},
)
GRAIN_TOKENS = 128
"""Contexts are cut at its multiples; as kGrain in params.cuh."""
BLOCKS_AT_ONCE = {4: 4, 8: 2, 16: 2}
"""Blocks of threads that run on a multiprocessor at once, by their queries; as __launch_bounds__
in paged_attention.cuh."""
MAX_HEAD_DIM = 256
BLOCK_TOKENS = (8, 16, 32)


def paged_attention(
    q_THD: Tensor,
    key_cache_BKCNX: Tensor,
    value_cache_BKDN: Tensor,
    table_SB: Tensor,
    token_rows_T: Tensor,
    table_rows_R: Tensor,
    context_lens_R: Tensor,
    positions_T: Tensor,
    out_THD: Tensor,
    *,
    max_context_len: int,
    max_query_len: int,
    scale: float,
    causal: bool = True,
    window: int | None = None,
    softcap: float | None = None,
    sinks_H: Tensor | None = None,
    alibi_H: Tensor | None = None,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    sparse: BlockSparse | None = None,
    version: int | None = None,
) -> Tensor:
    """Attend from each token to its row's positions up to its own; write to and return ``out_THD``.

    Row r's blocks stand in line ``table_rows_R[r]`` of ``table_SB``. Without ``causal`` each token
    sees the first ``context_lens_R[r]`` positions. Scores are scaled, capped (softcap * tanh(x /
    softcap)), and slope * distance is added; a sink is one more score, without a value. Caches of
    float8_e4m3fn hold key / k_scale and value / v_scale.

    The two bounds, which lengths on the device may stay below, choose how the work is cut:
    ``max_query_len`` above 1 lets a row's consecutive tokens share what they read, and version 2
    splits long contexts of few tokens. Results of version 1 have the same bits however tokens are
    batched. The workspace of version 2 is the device's: calls on two streams must not overlap.
    """
    num_tokens, heads, head_dim = q_THD.shape
    geometry = _geometry(
        *(q_THD.dtype, heads, head_dim, q_THD.stride()),
        *(key_cache_BKCNX.dtype, key_cache_BKCNX.shape, key_cache_BKCNX.stride()),
        *(value_cache_BKDN.dtype, value_cache_BKDN.shape, value_cache_BKDN.stride()),
        *(table_SB.stride(0), causal, window, sparse, version),
    )
    _check_sizes(
        *(q_THD.dtype, q_THD.shape, out_THD.dtype, out_THD.shape, out_THD.is_contiguous()),
        *(table_SB.dtype, table_SB.stride(1), token_rows_T.dtype, token_rows_T.shape[0]),
        *(table_rows_R.dtype, context_lens_R.dtype, positions_T.dtype, positions_T.shape[0]),
    )
    for name, values_H in (("sinks", sinks_H), ("alibi", alibi_H)):
        if values_H is not None and (
            values_H.dtype is not torch.float32 or values_H.shape[0] != heads
        ):
            raise ValueError(
                f"paged_attention: {name} of {values_H.dtype} {list(values_H.shape)} must be "
                f"float32 [{heads}]"
            )
    device = q_THD.device
    if device.type != "cuda":
        arguments = (
            *(q_THD, key_cache_BKCNX, value_cache_BKDN, table_SB, token_rows_T, table_rows_R),
            *(context_lens_R, positions_T, out_THD, scale, causal, window, softcap),
            *(sinks_H, alibi_H, k_scale, v_scale, sparse),
        )
        return reference.paged_attention(*arguments)
    if not num_tokens:
        return out_THD
    span = max_context_len if window is None else min(max_context_len, window + max_query_len)
    group = heads // value_cache_BKDN.shape[1]
    queries, tile_tokens, partitions = _cut(
        *(num_tokens, heads, group, head_dim, -(-span // GRAIN_TOKENS)),
        *(max_query_len > 1, version, device.index),
    )
    workspace = None
    if partitions > 1:
        num_floats = num_tokens * heads * partitions * (head_dim + 2)
        workspace = _workspace(num_floats.bit_length(), device.index).data_ptr()
    library(SPEC, device.index).octavo_paged_attention(
        *(geometry, q_THD.data_ptr(), key_cache_BKCNX.data_ptr(), value_cache_BKDN.data_ptr()),
        *(out_THD.data_ptr(), table_SB.data_ptr(), token_rows_T.data_ptr()),
        *(table_rows_R.data_ptr(), context_lens_R.data_ptr(), positions_T.data_ptr()),
        None if sinks_H is None else sinks_H.data_ptr(),
        None if alibi_H is None else alibi_H.data_ptr(),
        *(workspace, num_tokens, queries, tile_tokens, partitions),
        *(scale * k_scale, v_scale, softcap or 0.0, stream_of(device.index)),
    )
    return out_THD


@functools.lru_cache(maxsize=1024)
def _cut(
    num_tokens: int,
    heads: int,
    group: int,
    head_dim: int,
    num_grains: int,
    has_runs: bool,
    version: int | None,
    device_index: int,
) -> tuple[int, int, int]:
    """Queries and tokens of a block of threads, and partitions of a context."""
    properties = torch.cuda.get_device_properties(device_index)
    most = 16
    # 16 queries take 64 KiB of shared memory at a head dim of 256: all that sm_75 has, or more.
    if properties.major < 8 and head_dim > 128:
        most = 8
    queries = most if has_runs else next(n for n in (4, 8, 16) if n >= min(group, most))
    tile_tokens = max(queries // group, 1) if has_runs else 1
    slices = -(-group // queries)
    num_blocks = -(-num_tokens // tile_tokens) * (heads // group) * slices
    # As many as run at once: a second wave of few blocks would take as long as the first.
    at_once = BLOCKS_AT_ONCE[queries] * properties.multi_processor_count
    partitions = 1 if version == 1 else min(num_grains, at_once // num_blocks)
    return queries, tile_tokens, max(partitions, 2 if version == 2 else 1)


@functools.cache
def _workspace(log2_floats: int, device_index: int) -> Tensor:
    """Never freed, since recorded graphs may hold its address; all sizes together twice the last.

    A few MB on a device of 132 multiprocessors: 528 blocks of 4 queries, or 264 of 16.
    """
    return torch.empty(1 << log2_floats, dtype=torch.float32, device=f"cuda:{device_index}")


# A model's layers differ in pointers only, so what depends on the rest is checked once.
@functools.lru_cache(maxsize=512)
def _geometry(
    dtype: torch.dtype,
    heads: int,
    head_dim: int,
    q_strides: tuple[int, ...],
    cache_dtype: torch.dtype,
    key_shape: tuple[int, ...],
    key_strides: tuple[int, ...],
    value_dtype: torch.dtype,
    value_shape: tuple[int, ...],
    value_strides: tuple[int, ...],
    table_stride: int,
    causal: bool,
    window: int | None,
    sparse: BlockSparse | None,
    version: int | None,
) -> Any:
    """Check how the arguments fit; return ``Geometry`` of params.cuh."""
    num_blocks, kv_heads, _, block_tokens, _ = key_shape
    run = 16 // cache_dtype.itemsize
    is_fp8 = cache_dtype is torch.float8_e4m3fn
    if dtype not in (torch.float32, torch.float16, torch.bfloat16) or not (
        value_dtype is cache_dtype and (is_fp8 or cache_dtype is dtype)
    ):
        raise ValueError(
            f"paged_attention: q is {dtype} and the caches {cache_dtype} and {value_dtype}; q must "
            "be float32, float16 or bfloat16, and the caches of its dtype or float8_e4m3fn"
        )
    if head_dim > MAX_HEAD_DIM or head_dim % run:
        raise ValueError(
            f"paged_attention: head_dim={head_dim} must be a multiple of {run}, the entries of "
            f"{cache_dtype} in 16 bytes, and {MAX_HEAD_DIM} at most"
        )
    if block_tokens not in BLOCK_TOKENS:
        raise ValueError(f"paged_attention: blocks of {block_tokens} tokens; known: 8, 16, 32")
    if heads % kv_heads:
        raise ValueError(f"paged_attention: {heads} heads do not share {kv_heads} kv heads evenly")
    packed_key = (kv_heads, head_dim // run, block_tokens, run)
    packed_value = (kv_heads, head_dim, block_tokens)
    for name, shape, strides, expected in (
        ("key_cache", key_shape, key_strides, packed_key),
        ("value_cache", value_shape, value_strides, packed_value),
    ):
        packed = torch.empty((1, *expected), device="meta").stride()
        if tuple(shape) != (num_blocks, *expected) or strides[1:] != packed[1:]:
            raise ValueError(
                f"paged_attention: {name} {list(shape)} with strides {strides} must be "
                f"{[num_blocks, *expected]}, packed but for the first axis"
            )
        if strides[0] * cache_dtype.itemsize % 16:
            raise ValueError(
                f"paged_attention: blocks of {name} lie {strides[0]} entries apart, which breaks "
                "reads of 16 bytes"
            )
    if q_strides[2] != 1:
        raise ValueError(f"paged_attention: strides {q_strides} of q: its last axis has gaps")
    if version not in (None, 1, 2):
        raise ValueError(f"paged_attention: version={version} is not known; known: 1, 2")
    if window is not None and (window < 1 or not causal):
        raise ValueError(f"paged_attention: window={window} must be above 0 and causal")
    numbers = (
        *(DTYPE_CODES[dtype], is_fp8, heads, kv_heads, head_dim, block_tokens.bit_length() - 1),
        *(*q_strides[:2], key_strides[0], value_strides[0], table_stride, causal, window or 0),
        *((sparse.block_tokens, sparse.local_blocks) if sparse else (0, 0)),
        *((sparse.vertical_stride, sparse.head_step) if sparse else (0, 0)),
    )
    if max(numbers) >= 2**31:
        raise ValueError(f"paged_attention: a stride of {max(numbers)} is above 2147483647")
    return (c_int * len(numbers))(*numbers)


@functools.lru_cache(maxsize=512)
def _check_sizes(
    dtype: torch.dtype,
    shape: tuple[int, ...],
    out_dtype: torch.dtype,
    out_shape: tuple[int, ...],
    out_is_contiguous: bool,
    table_dtype: torch.dtype,
    table_entry_stride: int,
    token_rows_dtype: torch.dtype,
    num_token_rows: int,
    table_rows_dtype: torch.dtype,
    context_lens_dtype: torch.dtype,
    positions_dtype: torch.dtype,
    num_positions: int,
) -> None:
    """Check what changes with the number of tokens."""
    if out_dtype is not dtype or out_shape != shape:
        raise ValueError(
            f"paged_attention: out is {out_dtype} {list(out_shape)}, and q {dtype} {list(shape)}"
        )
    if not out_is_contiguous or table_entry_stride != 1:
        raise ValueError("paged_attention: out, or the last axis of table, has gaps")
    if num_token_rows != shape[0] or num_positions != shape[0]:
        raise ValueError(
            f"paged_attention: {shape[0]} tokens, but {num_token_rows} token_rows and "
            f"{num_positions} positions"
        )
    if positions_dtype is not torch.int64 or {
        *(table_dtype, token_rows_dtype, table_rows_dtype, context_lens_dtype)
    } != {torch.int32}:
        raise ValueError(
            f"paged_attention: table {table_dtype}, token_rows {token_rows_dtype}, table_rows "
            f"{table_rows_dtype} and context_lens {context_lens_dtype} must be int32, and "
            f"positions {positions_dtype} int64"
        )


__all__ = ["BLOCK_TOKENS", "MAX_HEAD_DIM", "SPEC", "BlockSparse", "paged_attention"]
