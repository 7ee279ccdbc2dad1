"""Linears with LoRA adapters: each adds, for every token, what the token's adapter says.

The adapters on the device share one pool: a linear has P rank rows, an adapter of rank r takes r
consecutive ones, the same in every linear, and is known there by the first of them and their
number. Axis suffixes: T tokens, I inputs, O outputs, P rank rows, Q parts of a linear that have
matrices of their own, R rank rows of one adapter.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, nn

from octavo.adapters.packed import matrices
from octavo.adapters.pool import AdapterLoad
from octavo.layers.linear import Linear
from octavo.layers.sharding import Shard
from octavo_kernels.gated_activation import gated_activation
from octavo_kernels.lora import TokenGroups, expand_, group_tokens, shrink, sums_bytes
from octavo_registry.linear import Activation, Axis, FusedProducts, QuantizationMethod


class AdapterRows:
    """The rank rows of all linears of a model, and the step that is to use them."""

    def __init__(self, num_rank_rows: int, max_rank: int, *, batch_invariant: bool = False) -> None:
        self.num_rank_rows = num_rank_rows
        self._max_rank = max_rank
        self.batch_invariant = batch_invariant
        self.groups: TokenGroups | None = None
        """Of the step that runs; None: no token of it has an adapter."""
        self._pools: list[Tensor] = []
        self._homes: dict[str, list[_Home]] = defaultdict(list)

    def around(self, method: QuantizationMethod) -> AdaptedLinear:
        """See ``LinearAdapters``."""
        return AdaptedLinear(method, self)

    @property
    def num_bytes(self) -> int:
        """What the pool takes of the device."""
        return sum(pool.numel() * pool.element_size() for pool in self._pools)

    def begin(self, first_T: Tensor, rank_T: Tensor) -> None:
        """Take the first rank row and the rank of each token of the step to come; 0 for none.

        An ordinary launch, as the embedding's is, must come before the first linear's: kernels of
        linears fetch what they need while what stands in front of them still runs.
        """
        self.groups = group_tokens(
            first_T,
            rank_T,
            pool_rows=self.num_rank_rows,
            max_rank=self._max_rank,
            batch_invariant=self.batch_invariant,
            settled=True,
        )

    def end(self) -> None:
        """No token of the next step has an adapter, unless it begins."""
        self.groups = None

    def sums_bytes(self, num_tokens: int) -> int:
        """Scratch of one linear in a step of so many tokens."""
        shapes = [pool.shape for pool in self._pools if pool.dim() == 3]
        invariant = self.batch_invariant
        return max(
            sums_bytes(num_tokens, inputs, parts, self._max_rank, batch_invariant=invariant)
            for _, parts, inputs in shapes
        )

    def load(self, load: AdapterLoad) -> None:
        """Put an adapter where the scheduler says; what it does not touch becomes zero there."""
        first, rank = load.run
        for pool in self._pools:
            pool[first : first + rank].zero_()
        for name, down_RI, up_RO in matrices(load.adapter):
            rows = slice(first, first + len(down_RI))
            for home in self._homes.get(name, ()):
                home.down_PI[rows].copy_(down_RI[:, home.inputs], non_blocking=True)
                for up_PO, outputs in home.ups:
                    up_PO[rows].copy_(up_RO[:, outputs], non_blocking=True)

    def add(
        self, down_PQI: Tensor, up_PO: Tensor, parts: Mapping[str, list[Shard]], inputs: Shard
    ) -> None:
        """Take in a linear's rows; ``parts`` are what adapters name, with their outputs here."""
        self._pools += down_PQI, up_PO
        first = 0
        for index, (name, shards) in enumerate(parts.items()):
            home = _Home(down_PQI[:, index], _slice(inputs))
            for shard in shards:
                home.ups.append((up_PO[:, first : first + shard.size], _slice(shard)))
                first += shard.size
            self._homes[name].append(home)


@dataclass(slots=True)
class _Home:
    """Where one linear of a checkpoint has its matrices."""

    down_PI: Tensor
    inputs: slice
    ups: list[tuple[Tensor, slice]] = field(default_factory=list)
    """Columns of the pool, and the adapter's outputs that go there."""


class AdaptedLinear:
    """The method of one linear: another's products, and the adapters' part."""

    def __init__(self, inner: QuantizationMethod, rows: AdapterRows) -> None:
        self.inner = inner
        self._fused = inner if isinstance(inner, FusedProducts) else None
        self._rows = rows
        self._part_ends: tuple[int, ...] = ()

    def create(
        self,
        layer: nn.Module,
        *,
        name: str,
        in_features: int,
        out_features: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> Mapping[str, tuple[Axis, ...]]:
        """See ``QuantizationMethod``."""
        parts: dict[str, list[Shard]] = defaultdict(list)
        for part_name, shard in cast(Linear, layer).parts:
            parts[part_name].append(shard)
        ends, end = [], 0
        for shards in parts.values():
            end += sum(shard.size for shard in shards)
            ends.append(end)
        self._part_ends = tuple(ends)
        num_rows = self._rows.num_rank_rows
        down_PQI = torch.zeros(num_rows, len(parts), in_features, dtype=dtype, device=device)
        up_PO = torch.zeros(num_rows, out_features, dtype=dtype, device=device)
        layer.register_buffer("adapter_down_PQI", down_PQI, persistent=False)
        layer.register_buffer("adapter_up_PO", up_PO, persistent=False)
        self._rows.add(down_PQI, up_PO, parts, cast(Linear, layer).inputs)
        return self.inner.create(
            layer,
            name=name,
            in_features=in_features,
            out_features=out_features,
            dtype=dtype,
            device=device,
        )

    def finish(self, layer: nn.Module) -> None:
        """See ``QuantizationMethod``."""
        self.inner.finish(layer)

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None) -> Tensor:
        """See ``QuantizationMethod``."""
        return self._around(layer, x, lambda: self.inner.apply(layer, x, bias))

    def add_(self, layer: nn.Module, residual: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
        """See ``FusedProducts``."""
        if self._fused is None:
            return residual.add_(self.apply(layer, x, bias))
        add_ = self._fused.add_
        return self._around(layer, x, lambda: add_(layer, residual, x, bias))

    def gated(
        self, layer: nn.Module, x: Tensor, bias: Tensor | None, activation: Activation
    ) -> Tensor:
        """See ``FusedProducts``; adapters' parts must be there before the activation."""
        rows = self._rows
        # What is fused may round otherwise, so that a row would depend on others' having adapters.
        if self._fused is not None and rows.groups is None and not rows.batch_invariant:
            return self._fused.gated(layer, x, bias, activation)
        return gated_activation(self.apply(layer, x, bias), activation)

    def _around(self, layer: nn.Module, x_TI: Tensor, product: Callable[[], Tensor]) -> Tensor:
        groups = self._rows.groups
        if groups is None:
            return product()
        sums_STQR = shrink(x_TI, cast(Tensor, layer.adapter_down_PQI), groups)
        up_PO = cast(Tensor, layer.adapter_up_PO)
        return expand_(product(), sums_STQR, up_PO, self._part_ends, groups)


def _slice(shard: Shard) -> slice:
    return slice(shard.first, shard.first + shard.size)
