"""Times linear layers of some hundred tokens against cuBLAS, alone and as a layer's chain.

Axis suffixes: T tokens, I inner features, O output features, D hidden.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.kernels.linear import CHAIN_LAYERS, MODELS, Model, draw, draw_weights
from benchmarks.kernels.timing import BF16_TFLOPS, READ_TBPS, graph_time_us
from octavo_kernels.gated_activation import gated_activation
from octavo_kernels.hopper_products import product
from octavo_kernels.linear_mid import launch
from octavo_kernels.rms_norm import rms_norm

TOKENS = (80, 96, 128, 192, 256)

Product = Callable[[Tensor, Tensor], Tensor]


def gated_by_cublas(x_TI: Tensor, weight_OI: Tensor) -> Tensor:
    """A product and a kernel for its activation."""
    return gated_activation(F.linear(x_TI, weight_OI), "silu")


def gated_by_us(x_TI: Tensor, weight_OI: Tensor) -> Tensor:
    """Product and activation in one kernel."""
    return product(launch, x_TI, weight_OI, None, "silu")


def plain_by_us(x_TI: Tensor, weight_OI: Tensor) -> Tensor:
    """A product alone."""
    return product(launch, x_TI, weight_OI, None, "store")


def time_product(way: Product, weights: list[Tensor], tokens: int) -> float:
    """Microseconds of one product with that many tokens."""
    x_TI = draw(tokens, weights[0].shape[1])
    torch.cuda.synchronize()
    return graph_time_us([partial(way, x_TI, weight) for weight in weights])


def time_layer(model: Model, tokens: int, *, ours: bool) -> float:
    """Microseconds a layer takes in a graph of layers; a norm stands for attention."""
    qkv, o, gate_up, down, _ = model.shapes()
    layers = [[draw(*shape) for shape in (qkv, o, gate_up, down)] for _ in range(CHAIN_LAYERS)]
    weight_D = torch.ones(model.hidden, device="cuda", dtype=torch.bfloat16)
    residual_TD = draw(tokens, model.hidden)
    torch.cuda.synchronize()
    plain: Product = plain_by_us if ours else F.linear
    gated = gated_by_us if ours else gated_by_cublas

    def add_(x_TI: Tensor, weight_OI: Tensor) -> None:
        if ours:
            launch(residual_TD, x_TI, weight_OI, None, "add")
        else:
            residual_TD.addmm_(x_TI, weight_OI.t())

    def run() -> None:
        for qkv_OI, o_OI, gate_up_EI, down_OI in layers:
            qkv_TO = plain(rms_norm(residual_TD, weight_D, 1e-5), qkv_OI)
            add_(rms_norm(qkv_TO[:, : model.hidden], weight_D, 1e-5), o_OI)
            add_(gated(rms_norm(residual_TD, weight_D, 1e-5), gate_up_EI), down_OI)

    return graph_time_us([run]) / CHAIN_LAYERS


def main() -> None:
    """Print the tables for the models named on the command line, or all."""
    models = [model for model in MODELS if model.name in (sys.argv[1:] or [m.name for m in MODELS])]
    print(f"{'weight':>16} {'tokens':>6} {'us':>7} {'TB/s':>5} {'TFLOP/s':>7} {'cuBLAS us':>9}")
    for model in models:
        for index, (rows, features) in enumerate(model.shapes()[:4]):
            weights = draw_weights(rows, features)
            ways = (gated_by_us, gated_by_cublas) if index == 2 else (plain_by_us, F.linear)
            for tokens in TOKENS:
                ours, theirs = (time_product(way, weights, tokens) for way in ways)
                name = f"{rows}x{features}" + ("*" if index == 2 else "")
                print(
                    f"{name:>16} {tokens:6} {ours:7.1f} {2 * rows * features / ours / 1e6:5.2f} "
                    f"{2 * tokens * rows * features / ours / 1e6:7.0f} {theirs:9.1f}",
                    flush=True,
                )
    print("* gated, against cuBLAS and a kernel for the activation; layers, with norms:")
    for model in models:
        size = sum(rows * features for rows, features in model.shapes()[:4])
        for tokens in TOKENS:
            ours, theirs = (time_layer(model, tokens, ours=way) for way in (True, False))
            limit = max(2 * size / READ_TBPS / 1e6, 2 * size * tokens / BF16_TFLOPS / 1e6)
            print(
                f"{model.name:>16} {tokens:6} {ours:7.1f} us, {ours / limit:.2f} of the limit; "
                f"cuBLAS {theirs:.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
