"""Times linear layers of few tokens, alone and as the chain that a decode step makes of them.

Axis suffixes: T tokens, I inner features, O output features, E gate and up features, D hidden.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.kernels.timing import READ_TBPS, graph_time_us
from octavo_kernels.linear import gated_linear, linear, linear_add_
from octavo_kernels.rms_norm import rms_norm

ROTATION_BYTES = 300e6
"""Weights that a measurement goes round over: several times the L2's 60 MB."""
CHAIN_LAYERS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The sizes of a model's linear layers."""

    name: str
    hidden: int
    qkv: int
    intermediate: int
    vocabulary: int = 128256

    def shapes(self) -> list[tuple[int, int]]:
        """Rows and inner features: qkv, o, gate and up, down, head."""
        return [
            (self.qkv, self.hidden),
            (self.hidden, self.hidden),
            (2 * self.intermediate, self.hidden),
            (self.hidden, self.intermediate),
            (self.vocabulary, self.hidden),
        ]


MODELS = [
    Model(name="8b", hidden=4096, qkv=6144, intermediate=14336),
    Model(name="1b", hidden=2048, qkv=3072, intermediate=8192),
    Model(name="3b", hidden=3072, qkv=5120, intermediate=8192),
]


def draw(*shape: int) -> Tensor:
    """Random values that keep a chain of products near one."""
    return torch.empty(shape, device="cuda", dtype=torch.bfloat16).normal_(std=shape[-1] ** -0.5)


def time_shape(
    product: Callable[[Tensor, Tensor], object], weights: list[Tensor], tokens: int
) -> float:
    """Microseconds of one product with that many tokens."""
    x_TI = draw(tokens, weights[0].shape[1])
    torch.cuda.synchronize()
    return graph_time_us([lambda weight=weight: product(x_TI, weight) for weight in weights])


def draw_weights(rows: int, features: int) -> list[Tensor]:
    """As many as make the L2 useless."""
    return [draw(rows, features) for _ in range(int(ROTATION_BYTES / (2 * rows * features)) + 2)]


def layer_chain(model: Model, tokens: int) -> tuple[float, float]:
    """Microseconds a layer takes in a graph of layers, and its weights' time at READ_TBPS.

    A norm stands for each small kernel between products: of attention, only the place.
    """
    qkv, o, gate_up, down, _ = model.shapes()
    layers = [[draw(*shape) for shape in (qkv, o, gate_up, down)] for _ in range(CHAIN_LAYERS)]
    weight_D = torch.ones(model.hidden, device="cuda", dtype=torch.bfloat16)
    residual_TD = draw(tokens, model.hidden)
    torch.cuda.synchronize()

    def run() -> None:
        for qkv_OI, o_OI, gate_up_EI, down_OI in layers:
            qkv_TO = linear(rms_norm(residual_TD, weight_D, 1e-5), qkv_OI)
            mixed_TD = rms_norm(qkv_TO[:, : model.hidden], weight_D, 1e-5)
            linear_add_(residual_TD, mixed_TD, o_OI)
            normed_TD = rms_norm(residual_TD, weight_D, 1e-5)
            gated_TI = gated_linear(normed_TD, gate_up_EI, activation="silu")
            linear_add_(residual_TD, gated_TI, down_OI)

    microseconds = graph_time_us([run]) / CHAIN_LAYERS
    num_bytes = 2 * sum(rows * features for rows, features in (qkv, o, gate_up, down))
    return microseconds, num_bytes / READ_TBPS / 1e6


def main() -> None:
    """Print the tables for the models named on the command line, or all."""
    models = [model for model in MODELS if model.name in (sys.argv[1:] or [m.name for m in MODELS])]
    for model in models:
        for tokens in (1, 8, 16, 32, 64):
            took, limit = layer_chain(model, tokens)
            print(f"{model.name} layer, {tokens:2} tokens: {took:6.1f} us, {took / limit:.3f}x")
    print(f"{'weight':>14} {'tokens':>6} {'us':>7} {'TB/s':>5} {'of 4.3':>6} {'cuBLAS us':>9}")
    for rows, features in sorted({shape for model in models for shape in model.shapes()}):
        weights = draw_weights(rows, features)
        for tokens in (1, 16, 32, 64):
            ours = time_shape(linear, weights, tokens)
            theirs = time_shape(F.linear, weights, tokens)
            rate = 2 * rows * features / ours / 1e6
            print(
                f"{f'{rows}x{features}':>14} {tokens:6} {ours:7.2f} {rate:5.2f} "
                f"{rate / READ_TBPS:6.0%} {theirs:9.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
