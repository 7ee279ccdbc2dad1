"""What calls share that differ in addresses and lengths only: checked once, then remembered."""

from __future__ import annotations

import ctypes
import functools

import torch

from octavo_kernels.library import DTYPE_CODES

HEAD_DIMS = (64, 128)
BLOCK_TOKENS = (8, 16, 32, 64, 128)
MAX_GROUP = 128
"""Query heads of a kv head: they are rows of one tile."""


class Geometry(ctypes.Structure):
    """As in kernel.cu; strides in elements."""

    _fields_ = (
        ("q_stride", ctypes.c_longlong),
        ("out_stride", ctypes.c_longlong),
        ("block_stride", ctypes.c_longlong),
        ("table_stride", ctypes.c_longlong),
        ("heads", ctypes.c_int),
        ("kv_heads", ctypes.c_int),
        ("head_dim", ctypes.c_int),
        ("dtype", ctypes.c_int),
        ("cache_dtype", ctypes.c_int),
        ("blocks", ctypes.c_int),
        ("block_tokens", ctypes.c_int),
        ("window", ctypes.c_int),
        ("causal", ctypes.c_int),
        ("sinks_are_float", ctypes.c_int),
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
        ("out_scale", ctypes.c_float),
    )


# A process has a few: one for each kind of layer. The bound is for tests and many models.
@functools.lru_cache(maxsize=256)
def check(
    q_shape: tuple[int, ...],
    out_shape: tuple[int, ...],
    cache_shape: tuple[int, ...],
    sinks_shape: tuple[int, ...] | None,
    scale: float,
    causal: bool,
    window: int | None,
    softcap: float | None,
) -> None:
    """Raise for what neither the kernel nor the reference can do; shapes of q and out by token."""
    heads, head_dim = q_shape
    if len(cache_shape) != 5 or cache_shape[1] != 2 or cache_shape[4] != head_dim:
        raise ValueError(
            f"hopper_prefill: a cache of shape {list(cache_shape)} does not fit queries of "
            f"{list(q_shape)} a token; it must be [blocks, 2, kv heads, block tokens, head dim]"
        )
    if cache_shape[2] == 0 or heads % cache_shape[2]:
        raise ValueError(f"hopper_prefill: {heads} query heads for {cache_shape[2]} kv heads")
    if out_shape != q_shape:
        raise ValueError(
            f"hopper_prefill: out has {list(out_shape)} a token, queries have {list(q_shape)}"
        )
    if window is not None and (window < 1 or not causal):
        raise ValueError(f"hopper_prefill: window={window} must be at least 1, and causal")
    if scale <= 0 or (softcap is not None and softcap <= 0):
        raise ValueError(f"hopper_prefill: scale={scale} and softcap={softcap} must be positive")
    if sinks_shape is not None and sinks_shape != (heads,):
        raise ValueError(f"hopper_prefill: sinks of shape {list(sinks_shape)} for {heads} heads")


@functools.lru_cache(maxsize=256)
def geometry(
    q_shape: tuple[int, ...],
    q_strides: tuple[int, ...],
    out_strides: tuple[int, ...],
    cache_shape: tuple[int, ...],
    cache_strides: tuple[int, ...],
    table_strides: tuple[int, ...],
    dtypes: tuple[torch.dtype, torch.dtype, torch.dtype],
    sinks_dtype: torch.dtype | None,
    scale: float,
    causal: bool,
    window: int | None,
    softcap: float | None,
    v_scale: float,
) -> Geometry:
    """Describe the call to the kernel, or raise for what it cannot do.

    ``scale`` has the keys' scale in it; ``dtypes`` are those of q, out and the cache.
    """
    heads, head_dim = q_shape
    blocks, _, kv_heads, block_tokens, _ = cache_shape
    dtype, out_dtype, cache_dtype = dtypes
    if (
        dtype not in (torch.bfloat16, torch.float16)
        or out_dtype != dtype
        or cache_dtype not in (dtype, torch.float8_e4m3fn)
    ):
        raise ValueError(
            f"hopper_prefill: q, out and cache are {', '.join(map(str, dtypes))}; all must be "
            "torch.bfloat16 or all torch.float16, or the cache torch.float8_e4m3fn"
        )
    if head_dim not in HEAD_DIMS or block_tokens not in BLOCK_TOKENS:
        raise ValueError(
            f"hopper_prefill: head_dim={head_dim} must be one of {HEAD_DIMS} and "
            f"block_tokens={block_tokens} one of {BLOCK_TOKENS}"
        )
    if heads > MAX_GROUP * kv_heads:
        raise ValueError(
            f"hopper_prefill: {heads} query heads on {kv_heads} kv heads; at most {MAX_GROUP} each"
        )
    for name, strides in (("q", q_strides), ("out", out_strides)):
        if strides[1:] != (head_dim, 1) or strides[0] % 8:
            raise ValueError(
                f"hopper_prefill: {name} has strides {strides} for {heads} heads of {head_dim}; a "
                "token's heads must be contiguous, and tokens a multiple of 16 bytes apart"
            )
    run = block_tokens * head_dim
    block_bytes = cache_strides[0] * cache_dtype.itemsize
    if cache_strides[1:] != (kv_heads * run, run, head_dim, 1) or block_bytes % 16:
        raise ValueError(
            f"hopper_prefill: the cache has strides {cache_strides} for shape {list(cache_shape)}; "
            "a block must be contiguous, and blocks a multiple of 16 bytes apart"
        )
    if table_strides[1] != 1:
        raise ValueError(f"hopper_prefill: the table has strides {table_strides}; lines are runs")
    if sinks_dtype not in (None, dtype, torch.float32):
        raise ValueError(f"hopper_prefill: sinks are {sinks_dtype}, not {dtype} or float32")
    return Geometry(
        q_stride=q_strides[0],
        out_stride=out_strides[0],
        block_stride=cache_strides[0],
        table_stride=table_strides[0],
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        dtype=DTYPE_CODES[dtype],
        cache_dtype=DTYPE_CODES[cache_dtype],
        blocks=blocks,
        block_tokens=block_tokens,
        window=window or 0,
        causal=causal,
        sinks_are_float=sinks_dtype == torch.float32,
        scale=scale,
        softcap=softcap or 0.0,
        out_scale=v_scale,
    )
