"""Times gated products and sums of many tokens against cuBLAS, both at the GPU's power limit.

Axis suffixes: T tokens, I inner features, O output features.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from statistics import mean

import torch
from torch import Tensor

from benchmarks.kernels.linear import MODELS, Model
from benchmarks.kernels.timing import BF16_TFLOPS, graph_time_us
from octavo_kernels.gated_activation import gated_activation
from octavo_kernels.hopper_products import product
from octavo_kernels.linear_tall import launch

TOKENS = (512, 768, 1024, 2048, 3000, 4096, 8192, 16384)
ROTATION_BYTES = 200e6
"""Weights that a measurement goes round over: several times the L2's 60 MB."""
SECONDS = 0.05
"""Of one measurement. Clocks follow the power with some delay, so that the two take turns."""

Call = Callable[[], object]


def draw(rows: int, columns: int) -> Tensor:
    """Random values of standard deviation one: power depends on them."""
    return torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16)


def calls(kind: str, x_TI: Tensor, weight_OI: Tensor) -> tuple[Call, Call]:
    """Our way to compute the product and cuBLAS's."""
    if kind == "gated":
        return (
            lambda: product(launch, x_TI, weight_OI, None, "silu"),
            lambda: gated_activation(x_TI @ weight_OI.T, "silu"),
        )
    residual_TO = torch.zeros_like(x_TI[:, :1]).repeat(1, weight_OI.shape[0])
    return (
        lambda: launch(residual_TO, x_TI, weight_OI, None, "add"),
        # Its product does not grow without bounds: it is the same work.
        lambda: residual_TO.addmm_(x_TI, weight_OI.t(), beta=0.5),
    )


def compare(kind: str, rows: int, features: int, tokens: int) -> tuple[float, float]:
    """Microseconds of our product and of cuBLAS's, in turns: ours, theirs, theirs, ours."""
    x_TI = draw(tokens, features)
    weights = [draw(rows, features) for _ in range(int(ROTATION_BYTES / (2 * rows * features)) + 1)]
    ours, theirs = zip(*(calls(kind, x_TI, weight) for weight in weights), strict=True)
    torch.cuda.synchronize()
    estimate = 2 * tokens * rows * features / BF16_TFLOPS / 1e12 * len(weights)
    rounds = max(3, int(SECONDS / estimate))
    times = [graph_time_us(way, rounds=rounds) for way in (ours, theirs, theirs, ours)]
    return mean((times[0], times[3])), mean(times[1:3])


def products(model: Model) -> list[tuple[str, int, int]]:
    """Kind, rows and features of a layer's products that the kernel is for."""
    _, o, gate_up, down, _ = model.shapes()
    return [("add", *o), ("gated", *gate_up), ("add", *down)]


def main() -> None:
    """Print a table for the models named on the command line, or all."""
    print(f"{'model':>5} {'kind':>5} {'weight':>11} {'tokens':>6} {'us':>7} {'TFLOP/s':>7} cuBLAS")
    for model in MODELS:
        if model.name not in (sys.argv[1:] or [model.name]):
            continue
        for kind, rows, features in products(model):
            for tokens in TOKENS:
                ours, theirs = compare(kind, rows, features, tokens)
                rate = 2 * tokens * rows * features / ours / 1e6
                print(
                    f"{model.name:>5} {kind:>5} {f'{rows}x{features}':>11} {tokens:6} "
                    f"{ours:7.1f} {rate:7.0f} {theirs:7.1f} us, ours {ours / theirs:.3f} of it",
                    flush=True,
                )


if __name__ == "__main__":
    main()
