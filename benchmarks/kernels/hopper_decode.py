"""Bandwidth of decode attention: python -m benchmarks.kernels.hopper_decode [quick]."""

from __future__ import annotations

import functools
import sys

import torch

from benchmarks.kernels.timing import READ_TBPS, graph_time_us
from octavo_kernels.hopper_decode import decode

LLAMA_8B = (32, 8, 128)
LLAMA_1B = (32, 8, 64)
ROTATED_BYTES = 400 << 20
"""What the calls of one graph read together, several times the L2."""


def call_us(
    shape: tuple[int, int, int],
    lens: list[int],
    *,
    block_tokens: int = 16,
    cache_dtype: torch.dtype = torch.bfloat16,
) -> tuple[float, int]:
    """Microseconds of a call, and the bytes it reads."""
    heads, kv_heads, head_dim = shape
    rows, counts = len(lens), [-(-length // block_tokens) for length in lens]
    token_bytes = 2 * kv_heads * head_dim * cache_dtype.itemsize
    num_bytes = sum(lens) * token_bytes
    num_copies = max(2, min(32, ROTATED_BYTES // num_bytes))
    table_SB = torch.zeros((rows, max(counts)), dtype=torch.int32)
    order, taken = torch.randperm(sum(counts)).int(), 0
    for row, count in enumerate(counts):
        table_SB[row, :count] = order[taken : taken + count]
        taken += count
    rows_R = torch.arange(rows, dtype=torch.int32, device="cuda")
    table_SB, lens_R = table_SB.cuda(), torch.tensor(lens, dtype=torch.int32, device="cuda")
    calls = []
    for _ in range(num_copies):
        cache = torch.randn(
            (sum(counts), 2, kv_heads, block_tokens, head_dim), dtype=torch.bfloat16, device="cuda"
        ).to(cache_dtype)
        q_RHD = torch.randn((rows, heads, head_dim), dtype=torch.bfloat16, device="cuda")
        calls.append(
            functools.partial(
                decode,
                *(q_RHD, cache, table_SB, rows_R, lens_R, torch.empty_like(q_RHD)),
                scale=head_dim**-0.5,
            )
        )
    return graph_time_us(calls), num_bytes


def ragged(rows: int) -> list[int]:
    return torch.randint(1, 2049, (rows,), generator=torch.Generator().manual_seed(0)).tolist()


def main() -> None:
    cases: list[tuple[str, tuple[int, int, int], list[int], dict[str, object]]] = []
    for name, shape in (("8B", LLAMA_8B), ("1B", LLAMA_1B)):
        cases += [(f"{name} 1 x {length}", shape, [length], {}) for length in (128, 1024, 4096)]
        cases += [
            (f"{name} 8 x 1024", shape, [1024] * 8, {}),
            (f"{name} 32 x 1024", shape, [1024] * 32, {}),
            (f"{name} 128 x 1024", shape, [1024] * 128, {}),
            (f"{name} 256 x 512", shape, [512] * 256, {}),
            (f"{name} 256 x 128", shape, [128] * 256, {}),
            (f"{name} 64 of 1 to 2048", shape, ragged(64), {}),
        ]
    if "quick" not in sys.argv:
        fp8 = {"cache_dtype": torch.float8_e4m3fn}
        cases += [
            ("8B 1 x 32768", LLAMA_8B, [32768], {}),
            ("8B 64 x 512 + 64 x 1", LLAMA_8B, [512] * 64 + [1] * 64, {}),
            ("8B 64 x 512", LLAMA_8B, [512] * 64, {}),
            ("8B 32 x 1024, blocks of 32", LLAMA_8B, [1024] * 32, {"block_tokens": 32}),
            ("8B 1024 x 128", LLAMA_8B, [128] * 1024, {}),
            ("16 heads on 1, 128 x 1024", (16, 1, 128), [1024] * 128, {}),
            ("8B fp8 64 x 1024", LLAMA_8B, [1024] * 64, fp8),
            ("8B fp8 256 x 512", LLAMA_8B, [512] * 256, fp8),
            ("1B fp8 256 x 1024", LLAMA_1B, [1024] * 256, fp8),
        ]
    print(f"{'':30} {'us':>8} {'MB':>8} {'TB/s':>6}   limit {READ_TBPS}")
    for name, shape, lens, options in cases:
        time_us, num_bytes = call_us(shape, lens, **options)  # type: ignore[arg-type]
        print(f"{name:30} {time_us:8.2f} {num_bytes / 1e6:8.1f} {num_bytes / time_us / 1e6:6.2f}")


if __name__ == "__main__":
    main()
