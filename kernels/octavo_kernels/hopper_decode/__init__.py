"""Paged decode attention on Hopper: one query per row, however long the rows, in one launch.

Axis suffixes: R rows (one per sequence), H query heads, D head dim, S slots, B blocks of a slot.
The cache is [blocks, 2 (keys, values), kv heads, block tokens, head dim].
"""

from __future__ import annotations

import ctypes
import functools
from ctypes import c_int, c_longlong
from typing import Any

import torch
from torch import Tensor

from octavo_kernels.build import F, KernelSpec, P
from octavo_kernels.hopper_decode import reference
from octavo_kernels.hopper_products import num_processors
from octavo_kernels.library import DTYPE_CODES, library, stream_of

SPEC = KernelSpec(
    name="hopper_decode",
    functions={"octavo_hopper_decode": (*(P,) * 16, *(F,) * 5)},
    arches=("90a",),
)
HEAD_DIMS = (64, 128)
BLOCK_TOKENS = (8, 16, 32, 64, 128)
MAX_GROUP = 16
"""Query heads of a kv head."""
WARPS = 4
"""Warps of a block of threads; as kWarps in decode.cuh."""
BLOCKS_EACH = 2
"""Blocks of a multiprocessor; as kBlocksEach in decode.cuh."""
MAX_TEAM = 8
"""Blocks that share one head of one row: a cluster. With 16, a row of 1024 took 1 us more."""


def decode(
    q_RHD: Tensor,
    cache: Tensor,
    table_SB: Tensor,
    table_rows_R: Tensor,
    context_lens_R: Tensor,
    out_RHD: Tensor,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks_H: Tensor | None = None,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    k_RKD: Tensor | None = None,
    v_RKD: Tensor | None = None,
    slots_R: Tensor | None = None,
    cos_RF: Tensor | None = None,
    sin_RF: Tensor | None = None,
    q_norm_D: Tensor | None = None,
    k_norm_D: Tensor | None = None,
    eps: float = 1e-6,
) -> None:
    """Write each row's attention over its ``context_lens_R[r]`` cached positions.

    Position p of row r is in block ``table_SB[table_rows_R[r], p // block]``; index tensors are
    int32. A row's heads are contiguous in q and out, rows may lie apart. A ``window`` counts the
    query's own position; ``sinks_H`` are logits that take part in the softmax without a value. A
    cache of float8_e4m3fn holds key / k_scale and value / v_scale; queries must then fit float16.

    With k and v, they are each row's last position, which is not in the cache yet: ``store_kv``'s
    work is done here, with its arguments, but q stays as it is. ``cos_RF`` and ``sin_RF`` must then
    turn whole heads. The kernel then reads the cache, tables, lengths and slots while the one
    before it in the stream still runs: whatever writes them must have ended before that one began,
    as it has if any launch without early start (each of PyTorch's) lies between.

    A row of context 0 is left out: nothing of it is read or written. Lengths and tables may change
    between replays of a CUDA graph, before whose capture one call must have run on the device.
    """
    device = q_RHD.device
    geometry = _geometry(
        *((x.dtype, x.shape, x.stride()) for x in (q_RHD, cache, out_RHD)),
        *((x.dtype, x.shape, x.stride()) for x in (table_SB, table_rows_R, context_lens_R)),
        *(
            None if x is None else (x.dtype, x.shape, x.stride())
            for x in (sinks_H, k_RKD, v_RKD, slots_R, cos_RF, sin_RF, q_norm_D, k_norm_D)
        ),
        window,
        device,
    )
    if scale <= 0 or (softcap is not None and softcap <= 0):
        raise ValueError(f"hopper_decode: scale={scale} and softcap={softcap} must be positive")
    if device.type == "cpu":
        reference.decode(
            q_RHD,
            cache,
            table_SB,
            table_rows_R,
            context_lens_R,
            out_RHD,
            scale=scale,
            window=window,
            softcap=softcap,
            sinks_H=sinks_H,
            k_scale=k_scale,
            v_scale=v_scale,
            k_RKD=k_RKD,
            v_RKD=v_RKD,
            slots_R=slots_R,
            cos_RF=cos_RF,
            sin_RF=sin_RF,
            q_norm_D=q_norm_D,
            k_norm_D=k_norm_D,
            eps=eps,
        )
        return
    q, pages, out = q_RHD.data_ptr(), cache.data_ptr(), out_RHD.data_ptr()
    if (q | pages | out) % 16:
        raise ValueError("hopper_decode: q, the cache and out must start at multiples of 16 bytes")
    library(SPEC, device.index).octavo_hopper_decode(
        geometry,
        q,
        pages,
        table_SB.data_ptr(),
        table_rows_R.data_ptr(),
        context_lens_R.data_ptr(),
        None if sinks_H is None else sinks_H.data_ptr(),
        out,
        _workspace(device.index).data_ptr(),
        *(
            None if x is None else x.data_ptr()
            for x in (k_RKD, v_RKD, cos_RF, sin_RF, q_norm_D, k_norm_D, slots_R)
        ),
        scale * k_scale,
        softcap or 0.0,
        k_scale,
        v_scale,
        eps,
        stream_of(device.index),
    )


class Geometry(ctypes.Structure):
    """As in split.cuh."""

    _fields_ = (
        *((name, c_longlong) for name in ("q_stride", "out_stride", "block_stride")),
        *((name, c_longlong) for name in ("table_stride", "k_stride", "v_stride")),
        *((name, c_longlong) for name in ("cos_stride", "sin_stride")),
        *((name, c_int) for name in ("dtype", "cache_dtype", "sinks_are_float")),
        *((name, c_int) for name in ("rows", "kv_heads", "group", "head_dim", "block_shift")),
        *((name, c_int) for name in ("window", "blocks", "team")),
    )


Form = tuple[torch.dtype, torch.Size, tuple[int, ...]]
"""A tensor's dtype, shape and strides."""


# A step's layers differ in pointers only: what depends on the rest is checked once.
@functools.lru_cache(maxsize=512)
def _geometry(
    q: Form,
    cache: Form,
    out: Form,
    table: Form,
    table_rows: Form,
    context_lens: Form,
    sinks: Form | None,
    k: Form | None,
    v: Form | None,
    slots: Form | None,
    cos: Form | None,
    sin: Form | None,
    q_norm: Form | None,
    k_norm: Form | None,
    window: int | None,
    device: torch.device,
) -> Any:
    """Check how the arguments fit; return a reference to a ``Geometry``."""
    rows, heads, head_dim = q[1]
    if len(cache[1]) != 5 or cache[1][1] != 2 or cache[1][4] != head_dim or heads % cache[1][2]:
        raise ValueError(
            f"hopper_decode: a cache of shape {list(cache[1])} does not fit queries of shape "
            f"{list(q[1])}; it must be [blocks, 2, kv heads, block tokens, head dim]"
        )
    _, _, kv_heads, block_tokens, _ = cache[1]
    if out[:2] != q[:2]:
        raise ValueError(
            f"hopper_decode: out is {out[0]} {list(out[1])}, queries are {q[0]} {list(q[1])}; "
            "they must be alike"
        )
    if len(table[1]) != 2 or table_rows[1] != (rows,) or context_lens[1] != (rows,):
        raise ValueError(
            f"hopper_decode: table {list(table[1])}, table rows {list(table_rows[1])} and context "
            f"lengths {list(context_lens[1])} do not fit {rows} rows"
        )
    if any(
        form[0] != torch.int32 or form[2][-1] != 1 for form in (table, table_rows, context_lens)
    ):
        raise ValueError(
            f"hopper_decode: table, table rows and context lengths are {table[0]}, {table_rows[0]} "
            f"and {context_lens[0]}; they must be contiguous int32"
        )
    if window is not None and window < 1:
        raise ValueError(f"hopper_decode: window={window} must be at least 1")
    if sinks is not None and (
        sinks[1] != (heads,) or sinks[2] != (1,) or sinks[0] not in (q[0], torch.float32)
    ):
        raise ValueError(
            f"hopper_decode: sinks are {sinks[0]} {list(sinks[1])}; they must be {q[0]} or "
            f"float32, one for each of {heads} heads"
        )
    new = {"k": k, "v": v, "slots": slots}
    transform = {"cos": cos, "sin": sin, "q_norm": q_norm, "k_norm": k_norm}
    if len({form is None for form in new.values()}) > 1 or (cos is None) != (sin is None):
        raise ValueError(
            "hopper_decode: k, v and slots must be given together, as must cos and sin; there are "
            f"{[name for name, form in (new | transform).items() if form is not None]}"
        )
    if k is None and any(form is not None for form in transform.values()):
        raise ValueError("hopper_decode: cos, sin and norms are for new tokens; give k and v too")
    shapes = {"k": (rows, kv_heads, head_dim), "v": (rows, kv_heads, head_dim), "slots": (rows,)}
    shapes |= {"cos": (rows, head_dim // 2), "sin": (rows, head_dim // 2)}
    shapes |= {"q_norm": (head_dim,), "k_norm": (head_dim,)}
    for name, form in (new | transform).items():
        dtype = torch.int64 if name == "slots" else q[0]
        if form is not None and (form[:2] != (dtype, shapes[name]) or form[2][-1] != 1):
            raise ValueError(
                f"hopper_decode: {name} is {form[0]} {list(form[1])}; it must be {dtype} "
                f"{list(shapes[name])}, without gaps in its last axis"
            )
    geometry = Geometry()
    if device.type != "cuda":
        return geometry
    if q[0] not in (torch.bfloat16, torch.float16) or cache[0] not in (q[0], torch.float8_e4m3fn):
        raise ValueError(
            f"hopper_decode: queries are {q[0]} and the cache is {cache[0]}; queries must be "
            "bfloat16 or float16, the cache as they are or float8_e4m3fn"
        )
    if head_dim not in HEAD_DIMS or block_tokens not in BLOCK_TOKENS:
        raise ValueError(
            f"hopper_decode: head_dim={head_dim} must be one of {HEAD_DIMS} and "
            f"block_tokens={block_tokens} one of {BLOCK_TOKENS}"
        )
    if heads > MAX_GROUP * kv_heads or rows < 1:
        raise ValueError(
            f"hopper_decode: {rows} rows of {heads} heads on {kv_heads} kv heads; at least one row "
            f"and at most {MAX_GROUP} heads on each"
        )
    for name, form in (("q", q), ("out", out), ("k", k), ("v", v)):
        if form is not None and (form[2][1:] != (head_dim, 1) or form[2][0] % 8):
            raise ValueError(
                f"hopper_decode: {name} has strides {form[2]} for shape {list(form[1])}; a row's "
                "heads must be contiguous, and rows start at multiples of 16 bytes"
            )
    run, item_bytes = block_tokens * head_dim, cache[0].itemsize
    block_bytes = cache[2][0] * item_bytes
    if cache[2][1:] != (kv_heads * run, run, head_dim, 1) or block_bytes % 16:
        raise ValueError(
            f"hopper_decode: the cache has strides {cache[2]} for shape {list(cache[1])}; a block "
            "must be contiguous and start at a multiple of 16 bytes"
        )
    geometry.q_stride, geometry.out_stride = q[2][0], out[2][0]
    geometry.block_stride, geometry.table_stride = block_bytes, table[2][0]
    for name, form in (("k", k), ("v", v), ("cos", cos), ("sin", sin)):
        setattr(geometry, f"{name}_stride", 0 if form is None else form[2][0])
    geometry.dtype, geometry.cache_dtype = DTYPE_CODES[q[0]], DTYPE_CODES[cache[0]]
    geometry.sinks_are_float = sinks is not None and sinks[0] == torch.float32
    geometry.rows, geometry.kv_heads, geometry.group = rows, kv_heads, heads // kv_heads
    geometry.head_dim, geometry.block_shift = head_dim, block_tokens.bit_length() - 1
    geometry.window = window or 2**31 - 1
    geometry.blocks, geometry.team = _grid(rows * kv_heads, num_processors(device.index))
    return ctypes.byref(geometry)


def _grid(segments: int, processors: int) -> tuple[int, int]:
    """Blocks of a launch, and of a team: of one head of one row; 0 if there are no teams."""
    if segments > BLOCKS_EACH * processors:
        return BLOCKS_EACH * processors, 0
    # Clusters with two blocks on a processor start late: 8 x 1024 tokens took 17.5 us, not 13.1.
    team = min(MAX_TEAM, 1 << max(processors // segments, 1).bit_length() - 1)
    return team * segments, team


@functools.cache
def _workspace(device_index: int) -> Tensor:
    """Where partial results go, one of each warp; all ones between launches.

    Kernels of one stream run one after another, so all calls share it; it is never freed, because
    graphs keep its address.
    """
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "hopper_decode: its workspace would become part of the CUDA graph that is being "
            "captured; call it once before"
        )
    num_bytes = MAX_GROUP * (max(HEAD_DIMS) + 4) * 4  # Partial in merge.cuh
    shape = (num_processors(device_index) * BLOCKS_EACH * WARPS, num_bytes)
    return torch.full(shape, 0xFF, dtype=torch.uint8, device=f"cuda:{device_index}")


__all__ = ["BLOCK_TOKENS", "HEAD_DIMS", "MAX_GROUP", "SPEC", "decode"]
