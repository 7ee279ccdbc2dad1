"""Bandwidth of decode attention: python -m benchmarks.kernels.hopper_decode [quick].

Of each case twice: over what the cache holds, and as models call it, with the step's own tokens
rotated (of the last shape also normed) and stored by the same launch.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch
from torch import Tensor

from benchmarks.kernels.timing import READ_TBPS, graph_time_us
from octavo_kernels.hopper_decode import decode

Shape = tuple[int, int, int]
LLAMA_8B = (32, 8, 128)
LLAMA_1B = (32, 8, 64)
QWEN_600M = (16, 8, 128)
ROTATED_BYTES = 400 << 20
"""What the calls of one graph read together, several times the L2."""


def make_calls(
    shape: Shape,
    lens: list[int],
    *,
    is_new: bool,
    block_tokens: int = 16,
    cache_dtype: torch.dtype = torch.bfloat16,
) -> tuple[list[functools.partial[None]], int]:
    """Calls that read different caches, and the bytes that one of them reads."""
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
    lens_R = torch.tensor(lens, dtype=torch.int32)
    new: dict[str, Any] = {}
    if is_new:
        last_R = lens_R.long() - 1
        blocks_R = table_SB[torch.arange(rows), last_R // block_tokens].long()
        new["slots_R"] = (blocks_R * block_tokens + last_R % block_tokens).cuda()
        new["cos_RF"], new["sin_RF"] = random(2, rows, head_dim // 2)
        if shape == QWEN_600M:
            new["q_norm_D"], new["k_norm_D"] = random(2, head_dim)
    index = (table_SB.cuda(), torch.arange(rows, dtype=torch.int32, device="cuda"), lens_R.cuda())
    # One for all calls: a product has just written them, so they are in the L2.
    q_RHD, k_RKD, v_RKD = random(rows, heads + 2 * kv_heads, head_dim).split(
        (heads, kv_heads, kv_heads), dim=1
    )
    if is_new:
        new |= {"k_RKD": k_RKD, "v_RKD": v_RKD}
    out_RHD = torch.empty((rows, heads, head_dim), dtype=q_RHD.dtype, device="cuda")
    calls = []
    for _ in range(num_copies):
        cache = random(sum(counts), 2, kv_heads, block_tokens, head_dim).to(cache_dtype)
        calls.append(
            functools.partial(decode, q_RHD, cache, *index, out_RHD, scale=head_dim**-0.5, **new)
        )
    return calls, num_bytes


def random(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.bfloat16, device="cuda")


def ragged(rows: int) -> list[int]:
    return torch.randint(1, 2049, (rows,), generator=torch.Generator().manual_seed(0)).tolist()


def main() -> None:
    cases: list[tuple[str, Shape, list[int], dict[str, Any]]] = []
    for name, shape in (("8B", LLAMA_8B), ("1B", LLAMA_1B)):
        cases += [(f"{name} 1 x {n}", shape, [n], {}) for n in (128, 1024, 1100, 4096)]
        cases += [
            (f"{name} 8 x 1024", shape, [1024] * 8, {}),
            (f"{name} 12 x 1100", shape, [1100] * 12, {}),
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
            ("0.6B 1 x 1024", QWEN_600M, [1024], {}),
            ("0.6B 32 x 1024", QWEN_600M, [1024] * 32, {}),
        ]
    print(f"{'':30} {'us':>8} {'as called':>9} {'MB':>8} {'TB/s':>6}   limit {READ_TBPS}")
    for name, shape, lens, options in cases:
        (cached, num_bytes), (new, _) = (
            make_calls(shape, lens, is_new=is_new, **options) for is_new in (False, True)
        )
        cached_us, new_us = graph_time_us(cached), graph_time_us(new)
        print(
            f"{name:30} {cached_us:8.2f} {new_us:9.2f} {num_bytes / 1e6:8.1f} "
            f"{num_bytes / new_us / 1e6:6.2f}"
        )


if __name__ == "__main__":
    main()
