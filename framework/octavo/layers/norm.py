"""Normalisation layers. Axis suffixes: T tokens, D hidden (entries of this rank, where split)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from octavo.layers.loading import Source
from octavo.layers.sharding import collectives_of
from octavo_kernels.layer_norm import layer_norm
from octavo_kernels.rms_norm import rms_norm
from octavo_registry.model import ModelSpec
from octavo_registry.sites import Shard


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
        yield _source(f"{self.name}.weight", self.weight, Shard.whole(len(self.weight)))


class SplitRMSNorm(RMSNorm):
    """RMS normalisation over entries that are split among the ranks, as whole projections are."""

    def __init__(self, name: str, entries: Shard, eps: float, *, spec: ModelSpec) -> None:
        super().__init__(name, entries.size, eps, spec=spec)
        self._entries = entries
        self._tp_size = spec.tp_size
        self._collectives = collectives_of(spec)

    def forward(self, x_TD: Tensor) -> Tensor:
        """This rank's entries normalised by the root-mean-square of all ranks', a new tensor."""
        if self._collectives is None:
            return super().forward(x_TD)
        x32_TD = x_TD.float()
        # A mean of means: parts are equally long, and each is held by equally many ranks.
        sum_T1 = self._collectives.all_reduce(x32_TD.square().mean(-1, keepdim=True))
        inverse_T1 = torch.rsqrt(sum_T1 / self._tp_size + self.eps)
        return (x32_TD * inverse_T1).to(x_TD.dtype).mul_(self.weight)

    def sources(self) -> Iterator[Source]:
        """See ``LoadsWeights``."""
        yield _source(f"{self.name}.weight", self.weight, self._entries)


class LayerNorm(nn.Module):
    """Layer normalisation; whole on every rank. Without ``affine`` it has no parameters."""

    def __init__(
        self, name: str, size: int, eps: float, *, spec: ModelSpec, affine: bool = True
    ) -> None:
        super().__init__()
        self.name = name
        self.eps = eps
        self._size = size
        self.weight: nn.Parameter | None = None
        self.bias: nn.Parameter | None = None
        if affine:
            for key in ("weight", "bias"):
                empty_D = torch.empty(size, dtype=spec.dtype, device=spec.device)
                setattr(self, key, nn.Parameter(empty_D, requires_grad=False))

    def forward(self, x_TD: Tensor) -> Tensor:
        """The normalised x, a new tensor."""
        return layer_norm(x_TD, self.weight, self.bias, self.eps)

    def sources(self) -> Iterator[Source]:
        """See ``LoadsWeights``."""
        for key, parameter in self.named_parameters():
            yield _source(f"{self.name}.{key}", parameter, Shard.whole(self._size))


def _source(name: str, parameter: nn.Parameter, entries: Shard) -> Source:
    return Source(
        name=name,
        shape=(entries.total,),
        part=(slice(entries.first, entries.first + entries.size),),
        target=parameter.data,
        parameter=parameter,
    )
