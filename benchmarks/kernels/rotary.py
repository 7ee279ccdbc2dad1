"""Queries and keys turned in place, beside the same in torch.

Run: python -m benchmarks.kernels.rotary.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from benchmarks.kernels.elementwise import DEVICE, Call, Case, randn, report
from octavo_kernels.rotary import reference, rotary_

SHAPES = {
    "Qwen2-VL's encoder": (32, 16, 80, torch.float32),
    "Qwen3-VL's encoder": (32, 16, 72, torch.float32),
    "a decoder": (40, 8, 128, torch.bfloat16),
    "one latent key": (1, 8, 64, torch.bfloat16),
}
"""Heads that turn, those beside them, their size, the angles' dtype."""


def main() -> None:
    """Print the table."""
    print(f"{'us':>8} {'TB/s':>6} {'%':>4} {'torch us':>9} {'host us':>8}  op")
    for name, (heads, beside, head_dim, dtype) in SHAPES.items():

        def call(
            num_tokens: int,
            heads: int = heads,
            rows: int = heads + beside,
            size: int = head_dim,
            dtype: torch.dtype = dtype,
            rotate: Callable[..., Tensor] = rotary_,
        ) -> Call:
            x_THD = randn(num_tokens, rows, size)[:, :heads]
            angles_TF = torch.rand(num_tokens, size // 2, device=DEVICE)
            table_T2F = torch.stack((angles_TF.cos(), angles_TF.sin()), dim=1).to(dtype)
            return partial(rotate, x_THD, *table_T2F.unbind(1))

        for count in (1, 64, 1024, 5476, 16384):
            num_bytes = count * head_dim * (4.0 * heads + dtype.itemsize)
            theirs = partial(call, count, rotate=reference.rotary_)
            report(Case(f"rotary_ {count}, {name}", num_bytes, partial(call, count), theirs))


if __name__ == "__main__":
    main()
