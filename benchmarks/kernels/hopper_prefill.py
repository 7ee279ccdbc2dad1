"""Times paged prefill attention: python -m benchmarks.kernels.hopper_prefill [filter].

The last column is torch's fused attention on dense, fresh keys and values of the same lengths,
where it can do the same: one sequence without a prefix.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.kernels.timing import BF16_TFLOPS, graph_time_us
from octavo_kernels.hopper_prefill import prefill

BLOCK_TOKENS = 16
ROTATION_BYTES = 100e6


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A batch of equal query heads; 32/8 heads unless said."""

    name: str
    query_lens: tuple[int, ...]
    prefixes: tuple[int, ...]
    head_dim: int = 128
    heads: int = 32
    kv_heads: int = 8
    cache_dtype: torch.dtype = torch.bfloat16

    def flops(self) -> float:
        pairs = sum(
            n * prefix + n * (n + 1) / 2
            for n, prefix in zip(self.query_lens, self.prefixes, strict=True)
        )
        return 4 * self.heads * self.head_dim * pairs

    def call(self) -> Callable[[], None]:
        """One set of buffers and a call on it."""
        contexts = np.add(self.query_lens, self.prefixes)
        widths = -(-contexts // BLOCK_TOKENS)
        shape = (int(widths.sum()), 2, self.kv_heads, BLOCK_TOKENS, self.head_dim)
        cache = torch.randn(shape, dtype=torch.bfloat16, device="cuda").to(self.cache_dtype)
        table_SB = torch.zeros(len(widths), int(widths.max()), dtype=torch.int32)
        blocks = torch.randperm(shape[0], dtype=torch.int32)
        for row, part in enumerate(blocks.split(widths.tolist())):
            table_SB[row, : len(part)] = part
        num_tokens = sum(self.query_lens)
        width = (self.heads + 2 * self.kv_heads) * self.head_dim
        qkv_TX = torch.randn(num_tokens, width, dtype=torch.bfloat16, device="cuda")
        q_THD = qkv_TX[:, : self.heads * self.head_dim].unflatten(1, (self.heads, self.head_dim))
        table_SB = table_SB.cuda()
        rows_R = torch.arange(len(widths), dtype=torch.int32, device="cuda")
        starts = torch.tensor([0, *np.cumsum(self.query_lens)], dtype=torch.int32, device="cuda")
        contexts_R = torch.tensor(contexts, dtype=torch.int32, device="cuda")
        lens_R = np.array(self.query_lens, dtype=np.int32)
        out_THD = torch.empty_like(q_THD, memory_format=torch.contiguous_format)
        scale = self.head_dim**-0.5
        max_context = int(contexts.max())

        def run() -> None:
            prefill(
                q_THD,
                cache,
                table_SB,
                rows_R,
                starts,
                contexts_R,
                out_THD,
                first_row=0,
                query_lens_R=lens_R,
                scale=scale,
                max_context=max_context,
            )

        return run

    def torch_call(self) -> Callable[[], object] | None:
        if len(self.query_lens) > 1 or self.prefixes[0] or self.cache_dtype.itemsize == 1:
            return None
        q, k, v = (
            torch.randn(
                1, heads, self.query_lens[0], self.head_dim, dtype=torch.bfloat16, device="cuda"
            )
            for heads in (self.heads, self.kv_heads, self.kv_heads)
        )

        def run() -> object:
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

        return run


def one(name: str, length: int, *, prefix: int = 0, rows: int = 1, **shape: Any) -> Shape:
    return Shape(name=name, query_lens=(length,) * rows, prefixes=(prefix,) * rows, **shape)


FLOAT8 = {"cache_dtype": torch.float8_e4m3fn}


RAGGED = tuple(np.random.default_rng(0).integers(20, 2000, 16).tolist())
SHAPES = [
    one("d128 1 x 512", 512),
    one("d128 1 x 1k", 1024),
    one("d128 1 x 2k", 2048),
    one("d128 1 x 8k", 8192),
    one("d128 1 x 32k", 32768),
    one("d128 8k after 8k", 8192, prefix=8192),
    one("d128 8k after 24k", 8192, prefix=24576),
    one("d128 16 x 512", 512, rows=16),
    one("d128 64 x 128", 128, rows=64),
    Shape(name="d128 16 ragged <2k", query_lens=RAGGED, prefixes=(0,) * 16),
    one("d128 8 x 64 after 4k", 64, prefix=4096, rows=8),
    one("d128 128 after 1k", 128, prefix=1024),
    one("d128 128 after 8k", 128, prefix=8192),
    one("d128 32 after 32k", 32, prefix=32768),
    one("d64 1 x 1k", 1024, head_dim=64),
    one("d64 1 x 8k", 8192, head_dim=64),
    one("d64 1 x 32k", 32768, head_dim=64),
    one("d128 fp8 1 x 1k", 1024, **FLOAT8),
    one("d128 fp8 1 x 8k", 8192, **FLOAT8),
    one("d128 fp8 1 x 32k", 32768, **FLOAT8),
    one("d128 fp8 8k after 8k", 8192, prefix=8192, **FLOAT8),
    one("d128 fp8 64 x 128", 128, rows=64, **FLOAT8),
    one("d128 fp8 128 after 8k", 128, prefix=8192, **FLOAT8),
    one("d128 fp8 32 after 32k", 32, prefix=32768, **FLOAT8),
    one("d64 fp8 1 x 8k", 8192, head_dim=64, **FLOAT8),
]


def host_us(call: Callable[[], None], repeats: int = 200) -> float:
    """What a call costs the host."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    elapsed = time.perf_counter() - start
    torch.cuda.synchronize()
    return elapsed / repeats * 1e6


def main() -> None:
    """Print the table."""
    print(f"{'32/8 heads, causal':22} {'us':>9} {'TFLOP/s':>8} {'of peak':>8} {'cuDNN':>8}")
    for shape in SHAPES:
        if len(sys.argv) > 1 and sys.argv[1] not in shape.name:
            continue
        tokens = sum(shape.query_lens)
        copies = min(8, int(ROTATION_BYTES / (tokens * shape.heads * shape.head_dim * 4)) + 1)
        rounds = 5 if shape.flops() > 1e12 else 20
        us = graph_time_us([shape.call() for _ in range(copies)], rounds=rounds)
        tflops = shape.flops() / us / 1e6
        peer = shape.torch_call()
        theirs = shape.flops() / graph_time_us([peer] * 3, rounds=5) / 1e6 if peer else None
        print(
            f"{shape.name:22} {us:9.1f} {tflops:8.0f} {tflops / BF16_TFLOPS:8.0%} "
            f"{f'{theirs:8.0f}' if theirs else '':>8}",
            flush=True,
        )
    print(f"host: {host_us(SHAPES[0].call()):.1f} us a call")


if __name__ == "__main__":
    main()
