"""Times paged attention on an H200's decode and prefill shapes, and its host's cost.

python -m benchmarks.kernels.paged_attention
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.kernels.timing import READ_TBPS, graph_time_us
from octavo_kernels.paged_attention import paged_attention

L2_BYTES = 64 << 20

Call = Callable[[], Tensor]


def calls(
    *,
    rows: int,
    context: int,
    queries: int = 1,
    heads: int = 32,
    kv_heads: int = 8,
    head_dim: int = 128,
    block_tokens: int = 16,
    dtype: torch.dtype = torch.bfloat16,
    is_fp8: bool = False,
    **keywords: Any,
) -> tuple[list[Call], int]:
    """Calls over caches that together exceed the L2, and what one of them reads."""
    cache_dtype = torch.float8_e4m3fn if is_fp8 else dtype
    piece = 16 // cache_dtype.itemsize
    blocks_per_row = -(-context // block_tokens)
    num_blocks = rows * blocks_per_row
    num_bytes = 2 * num_blocks * kv_heads * head_dim * block_tokens * cache_dtype.itemsize
    device = torch.device("cuda")
    positions = torch.arange(context - queries, context, device=device).repeat(rows)
    token_rows = torch.arange(rows, device=device, dtype=torch.int32).repeat_interleave(queries)
    lens = torch.full((rows,), context, device=device, dtype=torch.int32)
    made: list[Call] = []
    for _ in range(max(2, -(-2 * L2_BYTES // num_bytes))):
        table = torch.randperm(num_blocks, device=device).int().view(rows, blocks_per_row)
        keys = torch.randn(
            *(num_blocks, kv_heads, head_dim // piece, block_tokens, piece), device=device
        ).to(cache_dtype)
        values = torch.randn(*(num_blocks, kv_heads, head_dim, block_tokens), device=device).to(
            cache_dtype
        )
        q = torch.randn(rows * queries, heads, head_dim, device=device).to(dtype)
        tensors = (q, keys, values, table, token_rows, torch.arange(rows).int().to(device))

        def call(tensors: tuple[Tensor, ...] = tensors) -> Tensor:
            return paged_attention(
                *(*tensors, lens, positions, torch.empty_like(tensors[0])),
                **{"max_context_len": context, "max_query_len": queries, "scale": 0.1, **keywords},
            )

        made.append(call)
    return made, num_bytes


def decode(name: str, **shape: Any) -> None:
    """Both versions, and the one that is chosen."""
    times = []
    for version in (1, 2, None):
        made, num_bytes = calls(version=version, **shape)
        times.append(graph_time_us(made))
        del made
    tbps = num_bytes / times[-1] / 1e6
    columns = "  ".join(f"{us:8.1f}" for us in times)
    print(f"{name:34s} {columns}   {tbps:5.2f} TB/s  {tbps / READ_TBPS:4.0%}")


def prefill(name: str, **shape: Any) -> None:
    """Against the floating-point work of a causal prompt."""
    made, _ = calls(rows=1, **shape)
    us = graph_time_us(made[:2], rounds=3)
    flops = 2 * 2 * shape["queries"] * shape["context"] * 32 * 128
    if shape["queries"] == shape["context"]:
        flops //= 2
    print(f"{name:34s} {us:10.1f} us   {flops / us / 1e6:5.1f} TFLOP/s")


def host() -> None:
    """A call's cost to Python, without waiting for the device."""
    made, _ = calls(rows=1, context=64)
    count = 2000
    for _ in range(3):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            made[0]()
        us = (time.perf_counter() - start) / count * 1e6
    print(f"host, a call: {us:.1f} us, of which an empty_like is about 2")


def main() -> None:
    print(f"{'decode, 32/8 heads of 128':34s} {'v1':>8s}  {'v2':>8s}  {'chosen':>8s} us")
    for rows, context in ((1, 1024), (1, 8192), (8, 1024), (32, 1024), (128, 1024), (32, 4096)):
        decode(f"bf16 R={rows} ctx={context}", rows=rows, context=context)
    decode("fp8 R=32 ctx=1024", rows=32, context=1024, is_fp8=True)
    decode("fp32 R=32 ctx=1024", rows=32, context=1024, dtype=torch.float32)
    decode("bf16 R=32 ctx=1024, 64/8 heads", rows=32, context=1024, heads=64)
    decode("bf16 R=32 ctx=1024, 32/32 heads", rows=32, context=1024, kv_heads=32)
    decode("bf16 R=32 ctx=1024, dim 64", rows=32, context=1024, head_dim=64)
    decode("bf16 R=32 ctx=1024, blocks of 32", rows=32, context=1024, block_tokens=32)
    prefill("bf16 prefill 1024", queries=1024, context=1024)
    prefill("fp32 prefill 1024", queries=1024, context=1024, dtype=torch.float32)
    prefill("bf16 prefill 512 at 8192", queries=512, context=8192)
    host()


if __name__ == "__main__":
    main()
