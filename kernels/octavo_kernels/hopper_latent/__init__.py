"""Attention on Hopper of all heads of a query over cached rows that are their keys and values.

Axis suffixes: H query heads, R rows of a step (one query each), D entries of a cached row, S slots,
B blocks of the cache, L lanes over which a block's rows are cut, N rows of a lane.
"""

from __future__ import annotations

import ctypes
import functools
from ctypes import c_int, c_longlong
from typing import Any

import torch
from torch import Tensor

from octavo_kernels.build import F, KernelSpec, P
from octavo_kernels.hopper_latent import reference
from octavo_kernels.hopper_products import num_processors
from octavo_kernels.library import DTYPE_CODES, library, stream_of

SPEC = KernelSpec(
    name="hopper_latent",
    functions={"octavo_hopper_latent": (*(P,) * 8, F)},
    arches=("90a",),
)
DIMS = (384, 512, 768, 1024, 1280)
MAX_HEADS = 24
"""16 of rows of up to 512 entries."""
PARTS_EACH = 16
"""Blocks of threads that share a query's rows, where there are so many."""


def attend(
    q_HRD: Tensor,
    cache_LBND: Tensor,
    table_SB: Tensor,
    table_rows_R: Tensor,
    context_lens_R: Tensor,
    out_HRD: Tensor,
    *,
    scale: float,
) -> None:
    """Write for each query and head the softmax-weighted sum of its ``context_lens_R[r]`` rows.

    Position p of row r is in block ``table_SB[table_rows_R[r], p // (L * N)]``, whose rows lie lane
    by lane; index tensors are int32. A row of context 0 is left out: nothing is written. Lengths
    and tables may change between replays of a CUDA graph, before whose capture one call must have
    run on the device. They and the cache are read while the kernel before this one in the stream
    still runs, as by ``hopper_decode``.
    """
    device = q_HRD.device
    tensors = (q_HRD, cache_LBND, out_HRD, table_SB, table_rows_R, context_lens_R)
    geometry = _geometry(*((x.dtype, x.shape, x.stride()) for x in tensors), device)
    if device.type == "cpu":
        reference.attend(
            q_HRD, cache_LBND, table_SB, table_rows_R, context_lens_R, out_HRD, scale=scale
        )
        return
    q, cache, out = q_HRD.data_ptr(), cache_LBND.data_ptr(), out_HRD.data_ptr()
    if (q | cache | out) % 16:
        x = next(x for x in tensors[:3] if x.data_ptr() % 16)
        raise _misplaced((x.dtype, x.shape, x.stride()))
    library(SPEC, device.index).octavo_hopper_latent(
        geometry,
        q,
        cache,
        table_SB.data_ptr(),
        table_rows_R.data_ptr(),
        context_lens_R.data_ptr(),
        out,
        _workspace(device.index).data_ptr(),
        scale,
        stream_of(device.index),
    )


class Geometry(ctypes.Structure):
    """As in tiles.cuh."""

    _fields_ = (
        *((name, c_longlong) for name in ("q_row_stride", "q_head_stride")),
        *((name, c_longlong) for name in ("out_row_stride", "out_head_stride")),
        *((name, c_longlong) for name in ("block_stride", "lane_stride", "table_stride")),
        *((name, c_int) for name in ("dtype", "rows", "heads", "dim", "lanes", "lane_rows")),
        *((name, c_int) for name in ("blocks", "by_row")),
    )


def misfit(heads: int, dim: int) -> str | None:
    """Why the kernel cannot take heads over rows of so many entries; None: it can."""
    if dim not in DIMS:
        return f"rows of {dim} entries; they must have one of {DIMS}"
    most = MAX_HEADS if dim > 512 else 16
    if not 1 <= heads <= most:
        return f"{heads} heads over rows of {dim} entries; at most {most}"
    return None


def _grid(rows: int, most: int) -> tuple[int, bool]:
    """Blocks of threads, and whether they share out whole rows: where that leaves few without."""
    each = -(-rows // most)
    if each * most <= 1.06 * rows:
        return -(-rows // each), True
    return min(most, PARTS_EACH * rows), False


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
    device: torch.device,
) -> Any:
    """Check how the arguments fit; return a reference to a ``Geometry``."""
    heads, rows, dim = q[1]
    if len(cache[1]) != 4 or cache[1][3] != dim or out[1] != q[1]:
        raise ValueError(
            f"hopper_latent: a cache of shape {list(cache[1])} and results of shape "
            f"{list(out[1])} do not fit queries of shape {list(q[1])}"
        )
    if table_rows[1] != (rows,) or context_lens[1] != (rows,) or len(table[1]) != 2:
        raise ValueError(
            f"hopper_latent: table {list(table[1])}, table rows {list(table_rows[1])} "
            f"and context lengths {list(context_lens[1])} do not fit {rows} rows"
        )
    geometry = Geometry()
    if device.type != "cuda":
        return geometry
    if reason := misfit(heads, dim):
        raise ValueError(f"hopper_latent: {reason}")
    dtypes = {q[0], cache[0], out[0]}
    if len(dtypes) > 1 or q[0] not in (torch.bfloat16, torch.float16):
        raise ValueError(f"hopper_latent: {dtypes}; all must be bfloat16, or all float16")
    if any(
        form[0] != torch.int32 or form[2][-1] != 1 for form in (table, table_rows, context_lens)
    ):
        raise ValueError("hopper_latent: table, table rows and lengths must be contiguous int32")
    lanes, _, lane_rows, _ = cache[1]
    if lane_rows % 2:
        raise ValueError(f"hopper_latent: {lane_rows} rows of a lane; it must be even")
    for form in (q, cache, out):
        is_cut = form is cache and form[2][2] != dim
        if is_cut or form[2][-1] != 1 or any(stride % 8 for stride in form[2][:-1]):
            raise _misplaced(form)
    geometry.q_head_stride, geometry.q_row_stride, _ = q[2]
    geometry.out_head_stride, geometry.out_row_stride, _ = out[2]
    geometry.lane_stride, geometry.block_stride = (2 * stride for stride in cache[2][:2])
    geometry.table_stride = table[2][0]
    geometry.dtype = DTYPE_CODES[q[0]]
    geometry.rows, geometry.heads, geometry.dim = rows, heads, dim
    geometry.lanes, geometry.lane_rows = lanes, lane_rows
    geometry.blocks, geometry.by_row = _grid(rows, num_processors(device.index))
    return ctypes.byref(geometry)


def _misplaced(form: Form) -> ValueError:
    return ValueError(
        f"hopper_latent: strides {form[2]} of shape {list(form[1])}; rows must be contiguous and "
        "start at multiples of 16 bytes"
    )


@functools.cache
def _workspace(device_index: int) -> Tensor:
    """Where partial results go, two of each block of threads.

    Kernels of one stream run one after another, so all calls share it; it is never freed, because
    graphs keep its address.
    """
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "hopper_latent: its workspace would become part of the CUDA graph that is being "
            "captured; call it once before"
        )
    partial = MAX_HEADS * (max(DIMS) * 2 + 8)
    num_bytes = num_processors(device_index) * (16 + 2 * partial)
    return torch.empty(num_bytes, dtype=torch.uint8, device=f"cuda:{device_index}")


__all__ = ["DIMS", "MAX_HEADS", "SPEC", "attend", "misfit"]
