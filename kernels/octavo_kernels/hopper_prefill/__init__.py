"""Paged prefill attention on Hopper's tensor cores.

Axis suffixes: T tokens of the step, H query heads, D head dim, R rows (one per sequence), S slots,
B blocks of a slot. The cache is [blocks, 2 (keys, values), kv heads, block tokens, head dim].
"""

from __future__ import annotations

import ctypes
import functools

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo_kernels.build import I, KernelSpec, P
from octavo_kernels.hopper_prefill import reference
from octavo_kernels.hopper_prefill.geometry import BLOCK_TOKENS, HEAD_DIMS, check, geometry
from octavo_kernels.library import library, stream_of

SPEC = KernelSpec(
    name="hopper_prefill",
    functions={"octavo_hopper_prefill": (*(P,) * 11, *(I,) * 5)},
    arches=("90a",),
)


def prefill(
    q_THD: Tensor,
    cache: Tensor,
    table_SB: Tensor,
    table_rows_R: Tensor,
    query_starts_R1: Tensor,
    context_lens_R: Tensor,
    out_THD: Tensor,
    *,
    first_row: int,
    query_lens_R: NDArray[np.int32],
    scale: float,
    causal: bool = True,
    window: int | None = None,
    softcap: float | None = None,
    sinks_H: Tensor | None = None,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    max_context: int = 1 << 30,
    batch_invariant: bool = False,
) -> None:
    """Write the attention of rows ``first_row`` and up to ``out_THD``; other tokens' stay.

    Row r's queries are tokens ``query_starts_R1[r]:query_starts_R1[r + 1]``, the last
    ``query_lens_R[r]`` (exact, in host memory) of its ``context_lens_R[r]`` positions, all of
    which are in the cache. Position p is in block ``table_SB[table_rows_R[r], p // block]``. Index
    tensors are int32 on the device. A token's heads are contiguous in q and out, tokens may lie
    apart. A ``window`` counts the query's own position; ``sinks_H`` are logits that take part in
    the softmax without a value. A cache of float8_e4m3fn holds key / k_scale and value / v_scale;
    queries must then fit float16, in which products are taken. A few queries with long contexts
    take a second, small kernel; it is spared where ``max_context``, which no context of these rows
    exceeds, says so. ``batch_invariant``: a token's result has the same bits whatever tokens of its
    row come with it, whatever the other rows and ``max_context``; each 1,024 positions of a context
    are then summed by themselves.

    Before a CUDA graph is captured one call must have run on the device. Calls on two streams must
    not overlap: they share a workspace.
    """
    num_rows = query_lens_R.shape[0]
    if not (
        0 <= first_row <= num_rows < query_starts_R1.shape[0]
        and context_lens_R.shape[0] >= num_rows <= table_rows_R.shape[0]
    ):
        raise ValueError(
            f"hopper_prefill: first_row={first_row}, {len(query_starts_R1)} query starts, "
            f"{len(context_lens_R)} context lengths and {len(table_rows_R)} table rows do not fit "
            f"{num_rows} query lengths"
        )
    num_tokens, *q_shape = q_THD.shape
    q_HD, cache_shape = tuple(q_shape), cache.shape
    sinks_shape = None if sinks_H is None else sinks_H.shape
    check(q_HD, out_THD.shape[1:], cache_shape, sinks_shape, scale, causal, window, softcap)
    device_index = q_THD.get_device()
    if device_index < 0:
        reference.prefill(
            q_THD,
            cache,
            table_SB,
            table_rows_R,
            query_starts_R1,
            context_lens_R,
            out_THD,
            first_row=first_row,
            query_lens_R=query_lens_R,
            scale=scale,
            causal=causal,
            window=window,
            softcap=softcap,
            sinks_H=sinks_H,
            k_scale=k_scale,
            v_scale=v_scale,
        )
        return

    shared = geometry(
        q_HD,
        q_THD.stride(),
        out_THD.stride(),
        cache_shape,
        cache.stride(),
        table_SB.stride(),
        (q_THD.dtype, out_THD.dtype, cache.dtype),
        None if sinks_H is None else sinks_H.dtype,
        scale * k_scale,
        causal,
        window,
        softcap,
        v_scale,
    )
    q, out, pages = q_THD.data_ptr(), out_THD.data_ptr(), cache.data_ptr()
    if (q | out | pages) % 16:
        raise ValueError(f"hopper_prefill: q, out or cache at {q:x}, {out:x}, {pages:x}, not at 16")
    if query_lens_R.dtype != np.int32 or not query_lens_R.flags.c_contiguous:
        raise ValueError(
            f"hopper_prefill: query_lens_R is {query_lens_R.dtype}, not int32 in a run"
        )
    library(SPEC, device_index).octavo_hopper_prefill(
        ctypes.addressof(shared),
        q,
        out,
        pages,
        table_SB.data_ptr(),
        table_rows_R.data_ptr(),
        query_starts_R1.data_ptr(),
        context_lens_R.data_ptr(),
        None if sinks_H is None else sinks_H.data_ptr(),
        query_lens_R.__array_interface__["data"][0],
        _workspace(device_index).data_ptr(),
        num_tokens,
        first_row,
        num_rows,
        max_context,
        batch_invariant,
        stream_of(device_index),
    )


@functools.cache
def _workspace(device_index: int) -> Tensor:
    """Counts tiles, from zero to zero in each launch, and holds parts of them; never freed."""
    if torch.cuda.is_current_stream_capturing():
        # Only a replay would fill it with zeros, and a graph captured later may be replayed first.
        raise RuntimeError(
            "hopper_prefill: its workspace would become part of the CUDA graph that is being "
            "captured; call it once before"
        )
    processors = torch.cuda.get_device_properties(device_index).multi_processor_count
    # A tile of head dim 128 has the larger parts: 128 rows, each with a maximum and a sum besides.
    words = 4 + processors * 128 * (128 + 2)
    return torch.zeros(words, dtype=torch.int32, device=f"cuda:{device_index}")


__all__ = ["BLOCK_TOKENS", "HEAD_DIMS", "SPEC", "prefill"]
