"""Normalisation layers. Axis suffixes: T tokens, D hidden."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from octavo.layers.loading import Source
from octavo_kernels.rms_norm import rms_norm
from octavo_registry.model import ModelSpec


class RMSNorm(nn.Module):
    """Root-mean-square normalisation with a weight per entry; whole on every rank."""

    def __init__(self, name: str, size: int, eps: float, *, spec: ModelSpec) -> None:
        super().__init__()
        self.name = name
        self.eps = eps
        weight_D = torch.empty(size, dtype=spec.dtype, device=spec.device)
        self.weight = nn.Parameter(weight_D, requires_grad=False)

    def forward(self, x_TD: Tensor) -> Tensor:
        """The normalised x, a new tensor."""
        return rms_norm(x_TD, self.weight, self.eps)

    def sources(self) -> Iterator[Source]:
        """See ``LoadsWeights``."""
        yield Source(
            name=f"{self.name}.weight",
            shape=tuple(self.weight.shape),
            part=(slice(None),),
            target=self.weight.data,
            parameter=self.weight,
        )
