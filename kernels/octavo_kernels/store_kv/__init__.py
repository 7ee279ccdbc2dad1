"""Queries and keys are normalised and turned; keys and values go to the cache, in one launch.

Axis suffixes: T tokens, H query heads, K key/value heads, D head dim (values may have their own),
F rotary frequencies, B blocks, N tokens of a block, C pieces of a head, X entries of a piece.
"""

from __future__ import annotations

import functools
from ctypes import c_int
from typing import Any

import torch
from torch import Tensor

from octavo_kernels.build import F, KernelSpec, P
from octavo_kernels.library import DTYPE_CODES, FLOATS, library, stream_of
from octavo_kernels.store_kv import reference

SPEC = KernelSpec(
    name="store_kv",
    functions={"octavo_store_kv": (P, P, P, P, P, P, P, P, P, P, P, F, F, F)},
)


def store_kv(
    q_THD: Tensor,
    k_TKD: Tensor,
    v_TKD: Tensor,
    key_cache_BKND: Tensor,
    value_cache_BKND: Tensor,
    slots_T: Tensor,
    *,
    cos_TF: Tensor | None = None,
    sin_TF: Tensor | None = None,
    q_norm_D: Tensor | None = None,
    k_norm_D: Tensor | None = None,
    eps: float = 1e-6,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> None:
    """Transform q in place and k on its way to the cache; write k and v at ``slots_T``.

    A slot (int64) is block * N + offset. The transformation is an RMS norm of each head by
    ``q_norm_D`` and ``k_norm_D``, then a rotation of its first 2 F entries, pairs (i, i + F), each
    left out where its tensors are None. Caches are views with a contiguous last axis, of x's dtype
    or float8_e4m3fn; the latter hold value / scale, saturated.
    """
    if key_cache_BKND.dim() != 4:
        raise ValueError(f"store_kv: key_cache {list(key_cache_BKND.shape)} must have four axes")
    _store(
        (q_THD, k_TKD, v_TKD, key_cache_BKND, value_cache_BKND, slots_T),
        (cos_TF, sin_TF, q_norm_D, k_norm_D),
        (eps, k_scale, v_scale),
    )


def store_kv_paged(
    q_THD: Tensor,
    k_TKD: Tensor,
    v_TKD: Tensor,
    key_cache_BKCNX: Tensor,
    value_cache_BKDN: Tensor,
    slots_T: Tensor,
    *,
    cos_TF: Tensor | None = None,
    sin_TF: Tensor | None = None,
    q_norm_D: Tensor | None = None,
    k_norm_D: Tensor | None = None,
    eps: float = 1e-6,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> None:
    """As ``store_kv``, into the layout of PagedAttention: a key lies in pieces of 16 bytes."""
    if key_cache_BKCNX.dim() != 5:
        raise ValueError(f"store_kv: key_cache {list(key_cache_BKCNX.shape)} must have five axes")
    _store(
        (q_THD, k_TKD, v_TKD, key_cache_BKCNX, value_cache_BKDN, slots_T),
        (cos_TF, sin_TF, q_norm_D, k_norm_D),
        (eps, k_scale, v_scale),
    )


def _store(
    tensors: tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor],
    options: tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None],
    numbers: tuple[float, float, float],
) -> None:
    geometry = _geometry(
        *[(x.dtype, x.shape, x.stride()) for x in tensors],
        *[None if x is None else (x.dtype, x.shape, x.stride()) for x in options],
    )
    q_THD = tensors[0]
    if not q_THD.is_cuda:
        reference.store_kv(*tensors, *options, *numbers)
    elif q_THD.shape[0]:
        index = q_THD.get_device()
        library(SPEC, index).octavo_store_kv(
            geometry,
            *[x.data_ptr() for x in tensors],
            *[None if x is None else x.data_ptr() for x in options],
            *numbers,
            stream_of(index),
        )


Form = tuple[torch.dtype, torch.Size, tuple[int, ...]]
"""A tensor's dtype, shape and strides."""


# A step's layers differ in pointers only: what depends on the rest is checked once.
@functools.lru_cache(maxsize=512)
def _geometry(
    q: Form,
    k: Form,
    v: Form,
    key_cache: Form,
    value_cache: Form,
    slots: Form,
    cos: Form | None,
    sin: Form | None,
    q_norm: Form | None,
    k_norm: Form | None,
) -> Any:
    """Check how the arguments fit; return ``Geometry`` of kernel.cu."""
    dtype, (num_tokens, q_heads, key_dim), _ = q
    kv_heads, value_dim = k[1][1], v[1][2]
    num_pairs = 0 if cos is None else cos[1][1]
    paged = len(key_cache[1]) == 5
    block_tokens = key_cache[1][3 if paged else 2]
    num_blocks, run = key_cache[1][0], key_cache[1][-1]
    expected: list[tuple[str, Form | None, tuple[int, ...]]] = [
        ("k", k, (num_tokens, kv_heads, key_dim)),
        ("v", v, (num_tokens, kv_heads, value_dim)),
        ("slots", slots, (num_tokens,)),
        ("cos", cos, (num_tokens, num_pairs)),
        ("sin", sin, (num_tokens, num_pairs)),
        ("q_norm", q_norm, (key_dim,)),
        ("k_norm", k_norm, (key_dim,)),
    ]
    if paged:
        expected += [
            ("key_cache", key_cache, (num_blocks, kv_heads, key_dim // run, block_tokens, run)),
            ("value_cache", value_cache, (num_blocks, kv_heads, value_dim, block_tokens)),
        ]
    else:
        expected += [
            ("key_cache", key_cache, (num_blocks, kv_heads, block_tokens, key_dim)),
            ("value_cache", value_cache, (num_blocks, kv_heads, block_tokens, value_dim)),
        ]
    for name, form, shape in expected:
        if form is not None and tuple(form[1]) != shape:
            raise ValueError(
                f"store_kv: {name} of shape {list(form[1])} must be {list(shape)} to fit q "
                f"{list(q[1])}, k {list(k[1])}, v {list(v[1])} and key_cache {list(key_cache[1])}"
            )
    for name, form, _ in [("q", q, ()), *expected]:
        if form is not None and form[2][-1] != 1 and form[1][-1] != 1:
            raise ValueError(f"store_kv: the last axis of {name}, strides {form[2]}, has gaps")
    if (cos is None) != (sin is None) or 2 * num_pairs > key_dim:
        raise ValueError(
            f"store_kv: cos {cos and list(cos[1])} and sin {sin and list(sin[1])} must both be "
            f"given, with at most {key_dim // 2} frequencies"
        )
    if paged and (key_dim % run or run & (run - 1)):
        raise ValueError(f"store_kv: pieces of {run} entries do not divide heads of {key_dim}")
    same = {form[0] for form in (k, v, cos, sin, q_norm, k_norm) if form is not None}
    cache_dtype = key_cache[0]
    if same != {dtype} or dtype not in FLOATS or slots[0] is not torch.int64:
        raise ValueError(
            f"store_kv: q is {dtype}, the others are {sorted(map(str, same))} and slots "
            f"{slots[0]}; all must be one of float32, float16, bfloat16, and slots int64"
        )
    if value_cache[0] is not cache_dtype or cache_dtype not in (dtype, torch.float8_e4m3fn):
        raise ValueError(
            f"store_kv: caches of {cache_dtype} and {value_cache[0]} must be both of {dtype} or "
            "both float8_e4m3fn"
        )
    key_strides, value_strides = key_cache[2], value_cache[2]
    numbers = (
        *(DTYPE_CODES[dtype], DTYPE_CODES[cache_dtype]),
        *(num_tokens, q_heads, kv_heads, key_dim, value_dim, num_pairs, block_tokens),
        *(*q[2][:2], *k[2][:2], *v[2][:2]),
        *(cos[2][0] if cos else 0, sin[2][0] if sin else 0),
        # Key caches: strides of block, head, token and piece; the log2 of a piece's entries.
        *(key_strides[0], key_strides[1], key_strides[3 if paged else 2]),
        *((key_strides[2], run.bit_length() - 1) if paged else (0, 30)),
        # Value caches: strides of block, head, token and entry.
        *(value_strides[0], value_strides[1]),
        *((value_strides[3], value_strides[2]) if paged else (value_strides[2], 1)),
    )
    if max(numbers) >= 2**31:
        raise ValueError(f"store_kv: a size or stride of {max(numbers)} is above 2147483647")
    return (c_int * len(numbers))(*numbers)


__all__ = ["SPEC", "store_kv", "store_kv_paged"]
