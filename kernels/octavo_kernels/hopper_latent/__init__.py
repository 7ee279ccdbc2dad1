"""Attention on Hopper of all heads of a query over cached rows that are their keys and values.

Axis suffixes: H query heads, R rows of a step (one query each), D entries of a cached row, S slots,
B blocks of the cache, L lanes over which a block's rows are cut, N rows of a lane.
"""

from __future__ import annotations

import ctypes
import functools
from ctypes import c_int, c_longlong

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
    heads, rows, dim = q_HRD.shape
    if cache_LBND.dim() != 4 or cache_LBND.shape[3] != dim or out_HRD.shape != q_HRD.shape:
        raise ValueError(
            f"hopper_latent: a cache of shape {list(cache_LBND.shape)} and results of shape "
            f"{list(out_HRD.shape)} do not fit queries of shape {list(q_HRD.shape)}"
        )
    if table_rows_R.shape != (rows,) or context_lens_R.shape != (rows,) or table_SB.dim() != 2:
        raise ValueError(
            f"hopper_latent: table {list(table_SB.shape)}, table rows {list(table_rows_R.shape)} "
            f"and context lengths {list(context_lens_R.shape)} do not fit {rows} rows"
        )
    if device.type == "cpu":
        reference.attend(
            q_HRD, cache_LBND, table_SB, table_rows_R, context_lens_R, out_HRD, scale=scale
        )
        return
    _check(q_HRD, cache_LBND, out_HRD, table_SB, table_rows_R, context_lens_R)
    lanes, _, lane_rows, _ = cache_LBND.shape
    lane_stride, block_stride, *_ = (2 * stride for stride in cache_LBND.stride())
    kernel = library(SPEC, device.index)  # raises on a GPU that it is not for
    blocks, by_row = _grid(rows, num_processors(device.index))
    geometry = Geometry(
        q_HRD.stride(1),
        q_HRD.stride(0),
        out_HRD.stride(1),
        out_HRD.stride(0),
        block_stride,
        lane_stride,
        table_SB.stride(0),
        *(DTYPE_CODES[q_HRD.dtype], rows, heads, dim, lanes, lane_rows, blocks, by_row),
    )
    kernel.octavo_hopper_latent(
        ctypes.byref(geometry),
        q_HRD.data_ptr(),
        cache_LBND.data_ptr(),
        table_SB.data_ptr(),
        table_rows_R.data_ptr(),
        context_lens_R.data_ptr(),
        out_HRD.data_ptr(),
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


def _check(
    q_HRD: Tensor, cache_LBND: Tensor, out_HRD: Tensor, table_SB: Tensor, *indices: Tensor
) -> None:
    heads, _, dim = q_HRD.shape
    if reason := misfit(heads, dim):
        raise ValueError(f"hopper_latent: {reason}")
    dtypes = {q_HRD.dtype, cache_LBND.dtype, out_HRD.dtype}
    if len(dtypes) > 1 or q_HRD.dtype not in (torch.bfloat16, torch.float16):
        raise ValueError(f"hopper_latent: {dtypes}; all must be bfloat16, or all float16")
    if any(each.dtype != torch.int32 or each.stride(-1) != 1 for each in (table_SB, *indices)):
        raise ValueError("hopper_latent: table, table rows and lengths must be contiguous int32")
    if cache_LBND.shape[2] % 2:
        raise ValueError(f"hopper_latent: {cache_LBND.shape[2]} rows of a lane; it must be even")
    for each in (q_HRD, cache_LBND, out_HRD):
        is_cut = each is cache_LBND and each.stride(2) != dim
        if (
            is_cut
            or each.stride(-1) != 1
            or each.data_ptr() % 16
            or any(stride % 8 for stride in each.stride()[:-1])
        ):
            raise ValueError(
                f"hopper_latent: strides {each.stride()} of shape {list(each.shape)}; rows must be "
                "contiguous and start at multiples of 16 bytes"
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
