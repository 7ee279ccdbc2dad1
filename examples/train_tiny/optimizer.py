"""Muon: each matrix moves by its momentum with all singular values made equal.

Small models learn in about half the steps that AdamW takes (Jordan et al., 2024; README.md has our
own figures). Embeddings and norms, which are no maps from vectors to vectors, are left to AdamW.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor, nn

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
NUM_ITERATIONS = 5


class Muon(torch.optim.Optimizer):
    """For matrices only; those of one shape are updated together."""

    def __init__(
        self,
        matrices: Iterable[nn.Parameter],
        *,
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
            for parameter in group["params"]:
                by_shape[parameter.shape].append(parameter)
            for (rows, columns), parameters in by_shape.items():
                gradients = [p.grad for p in parameters]
                momenta = [self._momentum(p) for p in parameters]
                torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
                ahead = torch._foreach_lerp(gradients, momenta, group["momentum"])
                updates = orthogonalize(torch.stack(ahead)).to(parameters[0].dtype)
                size = group["lr"] * max(1.0, rows / columns) ** 0.5
                torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
                torch._foreach_add_(parameters, list(updates), alpha=-size)

    def _momentum(self, parameter: nn.Parameter) -> Tensor:
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        return state["momentum"]


def orthogonalize(matrices_NRC: Tensor) -> Tensor:
    """The nearest matrices with singular values near 1, by Newton-Schulz iterations."""
    a, b, c = NEWTON_SCHULZ
    is_tall = matrices_NRC.shape[1] > matrices_NRC.shape[2]
    x = (matrices_NRC.mT if is_tall else matrices_NRC).bfloat16()
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(NUM_ITERATIONS):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x.mT if is_tall else x
