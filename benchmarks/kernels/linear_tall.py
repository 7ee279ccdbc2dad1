"""Times gated products and sums of many tokens against cuBLAS, both at the GPU's power limit.

Those of language models, and an encoder's with biases: sums, and products that are activated.

Axis suffixes: T tokens, I inner features, O output features.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from statistics import mean

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.kernels.linear import MODELS, Model
from benchmarks.kernels.timing import BF16_TFLOPS, graph_time_us
from octavo_kernels.gated_activation import (
    PLAIN_ACTIVATIONS,
    gated_activation,
    plain_activation,
)
from octavo_kernels.hopper_products import product
from octavo_kernels.linear_tall import launch

ENCODER = "qwen2-vl"
ENCODER_PRODUCTS = [
    ("added", 1280, 1280),
    *((activation, 5120, 1280) for activation in PLAIN_ACTIVATIONS),
    ("added", 1280, 5120),
]
ENCODER_TOKENS = (2048, 5476, 10952, 27380)
"""The last three are one, two and five images of 1024 x 1024."""
TOKENS = (512, 768, 1024, 2048, 3000, 4096, 8192, 16384)
ROTATION_BYTES = 200e6
"""Weights that a measurement goes round over: several times the L2's 60 MB."""
SECONDS = 0.05
"""One measurement. Clocks follow the power with some delay, so that the two take turns."""

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
    bias_O = draw(1, weight_OI.shape[0])[0]
    if kind in PLAIN_ACTIVATIONS:
        return (
            lambda: product(launch, x_TI, weight_OI, bias_O, f"plain_{kind}"),
            lambda: plain_activation(F.linear(x_TI, weight_OI, bias_O), kind),
        )
    residual_TO = torch.zeros_like(x_TI[:, :1]).repeat(1, weight_OI.shape[0])
    if kind == "added":
        return (
            lambda: launch(residual_TO, x_TI, weight_OI, bias_O, "add"),
            lambda: residual_TO.add_(F.linear(x_TI, weight_OI, bias_O)),
        )
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
    layers = {model.name: (products(model), TOKENS) for model in MODELS}
    layers[ENCODER] = (ENCODER_PRODUCTS, ENCODER_TOKENS)
    print(f"{'model':>8} {'kind':>10} {'weight':>11} {'tokens':>6} {'us':>7} {'TFLOP/s':>7} cuBLAS")
    for name in sys.argv[1:] or layers:
        for kind, rows, features in layers[name][0]:
            for tokens in layers[name][1]:
                ours, theirs = compare(kind, rows, features, tokens)
                rate = 2 * tokens * rows * features / ours / 1e6
                print(
                    f"{name:>8} {kind:>10} {f'{rows}x{features}':>11} {tokens:6} "
                    f"{ours:7.1f} {rate:7.0f} {theirs:7.1f} us, ours {ours / theirs:.3f} of it",
                    flush=True,
                )


if __name__ == "__main__":
    main()
