"""Linears and the embedding with the part that the tokens' adapters add.

Axis suffixes: T tokens, I inputs, O outputs, P rank rows, Q parts of a linear that have matrices of
their own, R rank rows of one adapter, S splits, D hidden, V vocabulary.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from octavo.layers.linear import Linear
from octavo.layers.unquantized import UnquantizedLinear
from octavo_kernels.gated_activation import gated_activation, plain_activation
from octavo_kernels.hopper_products import Launch, product
from octavo_kernels.linear.adapted import Adapters, kernel_for
from octavo_kernels.lora import expand_, shrink
from octavo_registry.linear import (
    Activation,
    FusedProducts,
    PlainActivation,
    QuantizationMethod,
)
from octavo_registry.sites import Axis, Shard, Site, SiteKind

if TYPE_CHECKING:
    from octavo.layers.adapted import AdapterRows


class AdaptedLinear:
    """The method of one linear: another's products, and the adapters' part."""

    def __init__(self, inner: QuantizationMethod, rows: AdapterRows, kind: SiteKind) -> None:
        self.inner = inner
        self.batch_invariant: bool = inner.batch_invariant
        self._fused = inner if isinstance(inner, FusedProducts) else None
        self._rows = rows
        self._kind: SiteKind = kind
        self.part_ends: tuple[int, ...] = ()

    def create(
        self, layer: nn.Module, site: Site, *, dtype: torch.dtype, device: torch.device
    ) -> Mapping[str, tuple[Axis, ...]]:
        """See ``QuantizationMethod``."""
        linear = cast(Linear, layer)
        parts: dict[str, list[Shard]] = defaultdict(list)
        for part_name, shard in linear.parts:
            parts[part_name].append(shard)
        self.part_ends = self._rows.add(
            linear,
            linear.inputs,
            parts,
            shape=(site.in_features, site.out_features),
            like=(dtype, device),
            transposed=linear.transposed,
        )
        return self.inner.create(layer, site, dtype=dtype, device=device)

    def dequantize(self, layer: nn.Module) -> Tensor:
        """See ``QuantizationMethod``: the weight without adapters."""
        return self.inner.dequantize(layer)

    def finish(self, layer: nn.Module) -> None:
        """See ``QuantizationMethod``."""
        self.inner.finish(layer)

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None) -> Tensor:
        """See ``QuantizationMethod``."""
        kernel = self._kernel(layer, x, "store")
        if kernel is not None:
            return product(kernel, x, cast(Tensor, layer.weight), bias, "store")
        return self._around(layer, x, lambda: self.inner.apply(layer, x, bias))

    def add_(self, layer: nn.Module, residual: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
        """See ``FusedProducts``."""
        kernel = self._kernel(layer, x, "add", residual)
        if kernel is not None:
            kernel(residual, x, cast(Tensor, layer.weight), bias, "add")
            return residual
        if self._fused is None:
            return residual.add_(self.apply(layer, x, bias))
        add_ = self._fused.add_
        return self._around(layer, x, lambda: add_(layer, residual, x, bias))

    def gated(
        self, layer: nn.Module, x: Tensor, bias: Tensor | None, activation: Activation
    ) -> Tensor:
        """See ``FusedProducts``; adapters' parts must be there before the activation."""
        kernel = self._kernel(layer, x, activation)
        if kernel is not None:
            return product(kernel, x, cast(Tensor, layer.weight), bias, activation)
        if self._fused is not None and self._may_fuse():
            return self._fused.gated(layer, x, bias, activation)
        return gated_activation(self.apply(layer, x, bias), activation)

    def activated(
        self, layer: nn.Module, x: Tensor, bias: Tensor | None, activation: PlainActivation
    ) -> Tensor:
        """See ``FusedProducts``; as ``gated``, without gates."""
        if self._fused is not None and self._may_fuse():
            return self._fused.activated(layer, x, bias, activation)
        return plain_activation(self.apply(layer, x, bias), activation)

    def _may_fuse(self) -> bool:
        """What is fused may round otherwise, so that a row would depend on others' adapters."""
        return not self._rows.groups and not self._rows.batch_invariant

    def _kernel(
        self, layer: nn.Module, x: Tensor, epilogue: str, residual: Tensor | None = None
    ) -> Launch | None:
        """What does it all in one launch, where there is a kernel."""
        adapters = self._adapters(layer)
        if adapters is None or not isinstance(self.inner, UnquantizedLinear):
            return None
        weight = cast(Tensor, layer.weight)
        return kernel_for(x, weight, epilogue, residual, adapters)

    def _around(self, layer: nn.Module, x_TI: Tensor, multiply: Callable[[], Tensor]) -> Tensor:
        adapters = self._adapters(layer)
        if adapters is None:
            return multiply()
        sums_STQR = shrink(x_TI, adapters.down_PQI, adapters.groups)
        return expand_(multiply(), sums_STQR, adapters.up_PO, adapters.part_ends, adapters.groups)

    def _adapters(self, layer: nn.Module) -> Adapters | None:
        """The adapters of the step's tokens; None: no token has one here."""
        groups = self._rows.groups.get(self._kind)
        if groups is None:
            return None
        down_PQI = cast(Tensor, layer.adapter_down_PQI)
        return Adapters(down_PQI, cast(Tensor, layer.adapter_up_PO), self.part_ends, groups)


class AdaptedEmbedding:
    """Adds what tokens' adapters say of their numbers in the vocabulary."""

    def __init__(self, down_PV: Tensor, up_PD: Tensor, rows: AdapterRows) -> None:
        self._down_PV, self._up_PD = down_PV, up_PD
        self._rows = rows

    def add_(self, x_TD: Tensor, ids_T: Tensor, absent_T: Tensor | None) -> Tensor:
        """See ``EmbeddingAdapters``."""
        groups = self._rows.groups.get("embedding")
        if groups is None:
            return x_TD
        ranks_R = torch.arange(groups.max_rank, device=ids_T.device)
        # Past a token's rank stands what belongs to others, which is not used.
        rows_TR = (groups.first_T[:, None] + ranks_R).clamp(0, len(self._down_PV) - 1)
        sums_TR = self._down_PV[rows_TR, ids_T[:, None]].float()
        if absent_T is not None:
            sums_TR.masked_fill_(absent_T[:, None], 0)
        return expand_(x_TD, sums_TR[None, :, None], self._up_PD, x_TD.shape[1:], groups)
