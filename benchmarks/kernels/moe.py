"""Times mixture-of-experts layers of models' sizes against the bytes of the experts they hit.

Axis suffixes: T tokens, X experts, K chosen experts, D hidden, I intermediate, E gate and up.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from benchmarks.kernels.timing import BF16_TFLOPS, READ_TBPS, graph_time_us
from octavo_kernels.moe import experts, route

ROTATION_BYTES = 600e6
"""Weights that a measurement goes round over where a layer alone is too small for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A model's mixture-of-experts layer."""

    name: str
    experts: int
    chosen: int
    hidden: int
    intermediate: int

    @property
    def expert_bytes(self) -> int:
        """Bytes of one expert's weights, in bfloat16."""
        return 6 * self.hidden * self.intermediate

    def draw(self) -> tuple[Tensor, Tensor]:
        """Random weights that keep products near one."""
        shapes = (2 * self.intermediate, self.hidden), (self.hidden, self.intermediate)
        gate_up_XED, down_XDI = (
            torch.empty((self.experts, *shape), device="cuda", dtype=torch.bfloat16).normal_(
                std=shape[-1] ** -0.5
            )
            for shape in shapes
        )
        return gate_up_XED, down_XDI


LAYERS = [
    Layer(name="qwen3-30b-a3b", experts=128, chosen=8, hidden=2048, intermediate=768),
    Layer(name="mixtral-8x7b", experts=8, chosen=2, hidden=4096, intermediate=14336),
]


def report(layer: Layer, tokens: int, weights: list[tuple[Tensor, Tensor]]) -> None:
    """Print one line."""
    scores = [torch.randn(tokens, layer.experts, device="cuda") for _ in range(4 * len(weights))]
    x_TD = torch.randn(tokens, layer.hidden, device="cuda").bfloat16()
    routing = partial(route, k=layer.chosen, renormalize=True, score="softmax")
    chosen = [routing(scores_TX) for scores_TX in scores]
    calls = [
        partial(experts, x_TD, *weights[i % len(weights)], *choice, activation="silu")
        for i, choice in enumerate(chosen)
    ]
    time_us = graph_time_us(calls)
    route_us = graph_time_us([partial(routing, scores_TX) for scores_TX in scores])
    hit = sum(len(ids_TK.unique()) for ids_TK, _ in chosen) / len(chosen)
    terabytes = hit * layer.expert_bytes / time_us / 1e6
    tflops = layer.expert_bytes * layer.chosen * tokens / time_us / 1e6
    print(
        f"{layer.name:14s} T={tokens:5d}  {hit:5.1f} experts  {time_us:8.1f} us  "
        f"{terabytes:5.2f} TB/s {terabytes / READ_TBPS:4.0%}  "
        f"{tflops:6.1f} TFLOP/s {tflops / BF16_TFLOPS:4.0%}  route {route_us:5.1f} us",
        flush=True,
    )


def main() -> None:
    """Print the table; arguments are numbers of tokens."""
    sizes = [int(size) for size in sys.argv[1:]] or [1, 8, 16, 32, 64, 128, 256, 512, 1024, 4096]
    for layer in LAYERS:
        copies = max(1, round(ROTATION_BYTES / layer.expert_bytes / layer.experts))
        weights = [layer.draw() for _ in range(copies)]
        for tokens in sizes:
            report(layer, tokens, weights)


if __name__ == "__main__":
    main()
