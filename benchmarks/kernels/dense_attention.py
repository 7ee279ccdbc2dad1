"""Times dense attention of encoders: python -m benchmarks.kernels.dense_attention [filter].

The last columns are cuDNN's attention through torch on the same views, and how far ours differs
from it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.kernels.timing import BF16_TFLOPS, graph_time_us
from octavo_kernels.dense_attention import dense_attention

ROTATION_BYTES = 100e6


@dataclass(frozen=True, kw_only=True)
class Shape:
    """So many runs of one length, views of one product."""

    name: str
    runs: int
    length: int
    heads: int = 16
    head_dim: int = 80

    def flops(self) -> float:
        return 4 * self.heads * self.head_dim * self.runs * self.length**2

    def operands(self) -> tuple[Tensor, ...]:
        width = 3 * self.heads * self.head_dim
        shape = (self.runs * self.length, width)
        product_PX = torch.randn(shape, dtype=torch.bfloat16, device="cuda")
        return product_PX.unflatten(1, (-1, self.head_dim)).chunk(3, dim=1)

    def call(self, operands: tuple[Tensor, ...]) -> Callable[[], Tensor]:
        q_PHE, k_PHE, v_PHE = operands
        lengths = [self.length] * self.runs
        return lambda: dense_attention(q_PHE, k_PHE, v_PHE, lengths)

    def torch_call(self, operands: tuple[Tensor, ...]) -> Callable[[], Tensor]:
        split = (self.runs, self.length)
        q, k, v = (each.unflatten(0, split).transpose(1, 2) for each in operands)

        def run() -> Tensor:
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                return scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(0, 1)

        return run


SHAPES = [
    Shape(name="d80 5 x 5476", runs=5, length=5476),
    Shape(name="d80 1 x 5476", runs=1, length=5476),
    Shape(name="d80 20 x 1024", runs=20, length=1024),
    Shape(name="d80 256 x 64", runs=256, length=64),
    Shape(name="d64 16 x 1024", runs=16, length=1024, head_dim=64),
    Shape(name="d64 16 x 577", runs=16, length=577, head_dim=64),
    Shape(name="d64 8 x 1500", runs=8, length=1500, heads=20, head_dim=64),
    Shape(name="d72 16 x 729", runs=16, length=729, head_dim=72),
    Shape(name="d72 4 x 4096", runs=4, length=4096, head_dim=72),
    Shape(name="d96 4 x 4096", runs=4, length=4096, head_dim=96),
    Shape(name="d128 4 x 4096", runs=4, length=4096, head_dim=128),
]


def main() -> None:
    """Print the table."""
    print(f"{'':16} {'us':>9} {'TFLOP/s':>8} {'of peak':>8} {'cuDNN':>8} {'differs':>8}")
    for shape in SHAPES:
        if len(sys.argv) > 1 and sys.argv[1] not in shape.name:
            continue
        bytes_each = shape.runs * shape.length * 4 * shape.heads * shape.head_dim * 2
        copies = [shape.operands() for _ in range(int(ROTATION_BYTES / bytes_each) + 1)]
        us = graph_time_us([shape.call(each) for each in copies])
        theirs_us = graph_time_us([shape.torch_call(each) for each in copies])
        out, theirs = shape.call(copies[0])().float(), shape.torch_call(copies[0])().float()
        differs = float((out - theirs).norm() / theirs.norm())
        tflops = shape.flops() / us / 1e6
        print(
            f"{shape.name:16} {us:9.1f} {tflops:8.0f} {tflops / BF16_TFLOPS:8.0%} "
            f"{shape.flops() / theirs_us / 1e6:8.0f} {differs:8.1e}",
            flush=True,
        )


if __name__ == "__main__":
    main()
