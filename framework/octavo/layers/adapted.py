"""Linears and embeddings with LoRA adapters: each adds, for every token, what its adapter says.

The adapters on the device share one pool: a linear has P rank rows, an adapter of rank r takes r
consecutive ones, the same in every linear, and is known there by the first of them and their
number. An embedding is a linear whose input is a token's number in the vocabulary. Axis suffixes:
T tokens, I inputs, O outputs, P rank rows, Q parts of a linear that have matrices of their own, R
rank rows of one adapter, D hidden, V vocabulary.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from octavo.adapters.check import LinearSize
from octavo.adapters.packed import matrices
from octavo.adapters.pool import AdapterLoad
from octavo.layers.embedding import VocabParallelEmbedding
from octavo.layers.linear import Linear
from octavo.layers.logits import LMHead
from octavo.layers.sharding import Shard
from octavo_kernels.gated_activation import gated_activation
from octavo_kernels.lora import TokenGroups, expand_, group_tokens, shrink, sums_bytes
from octavo_registry.linear import Activation, Axis, FusedProducts, QuantizationMethod


class AdapterRuns(NamedTuple):
    """By slot, row or token: the first of its adapter's rank rows, and their number; 0 for none."""

    first: Tensor
    rank: Tensor

    def at(self, index: Tensor) -> AdapterRuns:
        """Those at these places."""
        return AdapterRuns(self.first.index_select(0, index), self.rank.index_select(0, index))

    def some(self, first: int, count: int) -> AdapterRuns:
        """So many from the first on."""
        return AdapterRuns(*(each[first : first + count] for each in self))


Place = Literal["layers", "embedding", "head"]
LOOKUP_BYTES: Final = 8 + 8 + 4 + 4
"""Of a token's rank row in an embedding: its number, twice, and what is looked up, twice."""


class AdapterRows:
    """The rank rows of all linears of a model, and the step that is to use them.

    Few adapters touch the vocabulary's ends, the embedding and the head. A step does nothing there
    until the first of these is loaded; from then on they are another family of recordings.
    """

    def __init__(self, num_rank_rows: int, max_rank: int, *, batch_invariant: bool = False) -> None:
        self.num_rank_rows = num_rank_rows
        self._max_rank = max_rank
        self.batch_invariant = batch_invariant
        self.linears: dict[str, LinearSize] = {}
        """What adapters can change, by the names that checkpoints have: several linears that the
        model has fused have a name each, one that is stored fused has one."""
        self.groups: dict[Place, TokenGroups] = {}
        """Of the step that runs; without an entry no token has an adapter there."""
        self.runs: AdapterRuns | None = None
        """Of its tokens; None: no token has an adapter."""
        self._ends: dict[Place, _End] = {}
        self._pools: list[Tensor] = []
        self.shrinks: set[tuple[int, int]] = set()
        """Inputs and parts of what is multiplied with."""
        self._homes: dict[str, list[_Home]] = defaultdict(list)

    def around(self, method: QuantizationMethod) -> AdaptedLinear:
        """See ``LayerAdapters``."""
        return AdaptedLinear(method, self, "layers")

    def of_head(self, layer: nn.Module, method: QuantizationMethod) -> AdaptedLinear:
        """See ``LayerAdapters``."""
        head, adapted = cast(LMHead, layer), AdaptedLinear(method, self, "head")
        num_outputs, num_inputs = head.weight.shape
        adapted.part_ends = self.add(
            head,
            Shard.whole(num_inputs),
            {head.name: [head.rows.shard]},
            shape=(num_inputs, num_outputs),
            like=(head.weight.dtype, head.weight.device),
        )
        self._ends["head"] = _End(head.name, self._no_ranks(head.weight))
        self.shrinks.add((num_inputs, 1))
        return adapted

    def of_embedding(self, layer: nn.Module) -> AdaptedEmbedding:
        """See ``LayerAdapters``."""
        embedding = cast(VocabParallelEmbedding, layer)
        num_inputs, num_outputs = embedding.weight.shape
        self.add(
            embedding,
            embedding.rows.shard,
            {embedding.name: [Shard.whole(num_outputs)]},
            shape=(num_inputs, num_outputs),
            like=(embedding.weight.dtype, embedding.weight.device),
            transposed=True,
        )
        self._ends["embedding"] = _End(embedding.name, self._no_ranks(embedding.weight))
        down_PQV, up_PD = self._pools[-2:]
        return AdaptedEmbedding(down_PQV[:, 0], up_PD, self)

    @property
    def num_bytes(self) -> int:
        """What the pool takes of the device."""
        return sum(pool.numel() * pool.element_size() for pool in self._pools)

    @property
    def family(self) -> str:
        """Of recordings: within one no mix of adapters, ranks or counts makes a difference."""
        ends = [place for place, end in self._ends.items() if end.is_touched]
        return " and ".join([" with adapters", *ends])

    def begin(self, runs: AdapterRuns) -> None:
        """Take the adapters of the tokens of the step to come."""
        self.runs = runs
        self.groups = {"layers": self._grouped(runs)}
        self._begin_at("embedding", runs)

    def begin_logits(self, runs: AdapterRuns | None) -> None:
        """Take those of the rows whose logits are to come; None: no row has one."""
        self.groups.pop("head", None)
        if runs is not None:
            self._begin_at("head", runs)

    def end(self) -> None:
        """No token has an adapter, unless the step begins."""
        self.runs = None
        self.groups = {}

    def _begin_at(self, place: Place, runs: AdapterRuns) -> None:
        end = self._ends.get(place)
        if end is not None and end.is_touched:
            ranks = end.ranks_P.index_select(0, runs.first).minimum(runs.rank)
            self.groups[place] = self._grouped(AdapterRuns(runs.first, ranks))

    def _grouped(self, runs: AdapterRuns) -> TokenGroups:
        return group_tokens(
            runs.first,
            runs.rank,
            pool_rows=self.num_rank_rows,
            max_rank=self._max_rank,
            batch_invariant=self.batch_invariant,
        )

    def sums_bytes(self, num_tokens: int) -> int:
        """Scratch of one linear in a step of so many tokens."""
        return max(
            LOOKUP_BYTES * num_tokens * self._max_rank,
            *(sums_bytes(num_tokens, *shape, self._max_rank) for shape in self.shrinks),
        )

    def load(self, load: AdapterLoad) -> None:
        """Put an adapter where the scheduler says; what it does not touch becomes zero there."""
        first, rank = load.run
        for pool in self._pools:
            pool[first : first + rank].zero_()
        shapes = load.adapter.head.shapes
        for end in self._ends.values():
            end.ranks_P[first] = shapes[end.name][0] if end.name in shapes else 0
            end.is_touched |= end.name in shapes
        for name, down_RI, up_RO in matrices(load.adapter):
            rows = slice(first, first + len(down_RI))
            for home in self._homes.get(name, ()):
                home.down_PI[rows].copy_(down_RI[:, home.inputs], non_blocking=True)
                for up_PO, outputs in home.ups:
                    up_PO[rows].copy_(up_RO[:, outputs], non_blocking=True)

    def add(
        self,
        layer: nn.Module,
        inputs: Shard,
        parts: Mapping[str, Sequence[Shard]],
        *,
        shape: tuple[int, int],
        like: tuple[torch.dtype, torch.device],
        transposed: bool = False,
    ) -> tuple[int, ...]:
        """Make the rows of a layer and return where its parts end.

        ``parts`` are what adapters name, with their outputs here. ``shape`` are the inputs and
        outputs that the layer has, which may be padded.
        """
        (num_inputs, num_outputs), (dtype, device) = shape, like
        num_rows = self.num_rank_rows
        down_PQI = torch.zeros(num_rows, len(parts), num_inputs, dtype=dtype, device=device)
        up_PO = torch.zeros(num_rows, num_outputs, dtype=dtype, device=device)
        layer.register_buffer("adapter_down_PQI", down_PQI, persistent=False)
        layer.register_buffer("adapter_up_PO", up_PO, persistent=False)
        self._pools += down_PQI, up_PO
        ends, end = [], 0
        for index, (name, shards) in enumerate(parts.items()):
            self.linears[name] = LinearSize(inputs.total, shards[0].total, transposed)
            home = _Home(down_PQI[:, index, : inputs.size], _slice(inputs))
            for shard in shards:
                home.ups.append((up_PO[:, end : end + shard.size], _slice(shard)))
                end += shard.size
            self._homes[name].append(home)
            ends.append(end)
        return (*ends[:-1], num_outputs)

    def _no_ranks(self, weight: Tensor) -> Tensor:
        return torch.zeros(self.num_rank_rows, dtype=torch.int32, device=weight.device)


@dataclass(slots=True)
class _End:
    """The embedding or the head."""

    name: str
    ranks_P: Tensor
    """At an adapter's first row its rank here."""
    is_touched: bool = False


@dataclass(slots=True)
class _Home:
    """Where one linear of a checkpoint has its matrices."""

    down_PI: Tensor
    inputs: slice
    ups: list[tuple[Tensor, slice]] = field(default_factory=list)
    """Columns of the pool, and the adapter's outputs that go there."""


class AdaptedLinear:
    """The method of one linear: another's products, and the adapters' part."""

    def __init__(self, inner: QuantizationMethod, rows: AdapterRows, place: Place) -> None:
        self.inner = inner
        self._fused = inner if isinstance(inner, FusedProducts) else None
        self._rows = rows
        self._place: Place = place
        self.part_ends: tuple[int, ...] = ()

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
        linear = cast(Linear, layer)
        parts: dict[str, list[Shard]] = defaultdict(list)
        for part_name, shard in linear.parts:
            parts[part_name].append(shard)
        self.part_ends = self._rows.add(
            linear,
            linear.inputs,
            parts,
            shape=(in_features, out_features),
            like=(dtype, device),
            transposed=linear.transposed,
        )
        self._rows.shrinks.add((in_features, len(parts)))
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
        if self._fused is not None and not rows.groups and not rows.batch_invariant:
            return self._fused.gated(layer, x, bias, activation)
        return gated_activation(self.apply(layer, x, bias), activation)

    def _around(self, layer: nn.Module, x_TI: Tensor, product: Callable[[], Tensor]) -> Tensor:
        groups = self._rows.groups.get(self._place)
        if groups is None:
            return product()
        sums_STQR = shrink(x_TI, cast(Tensor, layer.adapter_down_PQI), groups)
        up_PO = cast(Tensor, layer.adapter_up_PO)
        return expand_(product(), sums_STQR, up_PO, self.part_ends, groups)


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


def _slice(shard: Shard) -> slice:
    return slice(shard.first, shard.first + shard.size)
