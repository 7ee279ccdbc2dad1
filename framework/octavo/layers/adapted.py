"""Linears and embeddings with LoRA adapters: each adds, for every token, what its adapter says.

The adapters on the device share one pool: a linear has P rank rows, an adapter of rank r takes r
consecutive ones, the same in every linear, and is known there by the first of them and their
number. An embedding is a linear whose input is a token's number in the vocabulary. Axis suffixes:
T tokens, I inputs, O outputs, P rank rows, Q parts of a linear that have matrices of their own, R
rank rows of one adapter, D hidden, V vocabulary.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, cast

import torch
from torch import Tensor, nn

from octavo.errors import ModelError
from octavo.layers.adapted_experts import (
    SCRATCH_BYTES,
    AdaptedExperts,
    RankUse,
    StackedRows,
)
from octavo.layers.adapted_latent import AdaptedLatent
from octavo.layers.adapted_linear import AdaptedEmbedding, AdaptedLinear
from octavo.layers.embedding import VocabParallelEmbedding
from octavo.layers.latent_attention import LatentAttention
from octavo.layers.logits import LMHead
from octavo.layers.moe import MoE
from octavo.layers.stored_experts import StackedTensors
from octavo.layers.unquantized_experts import UnquantizedExperts
from octavo.messages import LinearSize
from octavo.steps.loads import AdapterLoad, Span
from octavo.steps.matrices import matrices
from octavo_kernels.linear.adapted import rooms_bytes
from octavo_kernels.lora import RANK_STEP, TokenGroups, group_tokens, sums_bytes
from octavo_registry.linear import QuantizationMethod
from octavo_registry.sites import Shard, SiteKind

SiteKinds = frozenset[SiteKind]
NO_SITES: Final[SiteKinds] = frozenset()


def family_of(sites: SiteKinds) -> str:
    """The family of recordings: within one, no mix of adapters, ranks or counts matters."""
    return f" with adapters of {', '.join(sorted(sites))}" if sites else ""


class AdapterSpans(NamedTuple):
    """The first of its adapter's rank rows and their number, by slot, row or token; 0: none."""

    first: Tensor
    rank: Tensor
    sites: SiteKinds
    """Where some of them may add."""

    def at(self, index: Tensor) -> AdapterSpans:
        """The rank rows of some slots, rows or tokens."""
        first, rank = (each.index_select(0, index) for each in (self.first, self.rank))
        return AdapterSpans(first, rank, self.sites)

    def some(self, first: int, count: int) -> AdapterSpans:
        """So many from the first on."""
        part = slice(first, first + count)
        return AdapterSpans(self.first[part], self.rank[part], self.sites)


LOOKUP_BYTES: Final = 8 + 8 + 4 + 4
"""A token's rank row in an embedding: its number, twice, and what is looked up, twice."""
MASK_BYTES: Final = 8 + 1 + 1 + 1
"""A token's rank row in what says which belong to others: a number, and three answers."""


class AdapterRows:
    """The rank rows of all linears of a model, and the step that is to use them.

    Few adapters touch the embedding, the head or experts. A step does nothing there unless one of
    these lies in the pool: steps then are of another family of recordings.
    """

    def __init__(
        self,
        num_rank_rows: int,
        max_rank: int,
        *,
        batch_invariant: bool = False,
        experts: bool = False,
    ) -> None:
        """Only with ``experts`` these have rows, as many as each of them has inputs and outputs."""
        self.num_rank_rows = num_rank_rows
        self._max_rank = max_rank
        self.batch_invariant = batch_invariant
        self.linears: dict[str, LinearSize] = {}
        """What adapters can change, by the names that checkpoints have: several linears that the
        model has fused have a name each, one that is stored fused has one."""
        self.tied: set[str] = set()
        """Names of both ends of the vocabulary where one weight is that of both."""
        self.groups: dict[SiteKind, TokenGroups] = {}
        """Groups of the running step's tokens; without an entry no token has an adapter there."""
        self.spans: AdapterSpans | None = None
        """The rank rows of the step's tokens; None: no token has an adapter."""
        self._rare: dict[SiteKind, _Rare] = {}
        self._present: dict[Span, set[SiteKind]] = {}
        """The rare sites that a loaded adapter touches, by its rank rows."""
        self._pools: list[Tensor] = []
        self._shrinks: set[tuple[int, int]] = set()
        """Inputs and parts of what is multiplied with."""
        self._homes: dict[str, list[_Home | StackedRows]] = defaultdict(list)
        self._orders: dict[str, Tensor] = {}
        self._rank_uses: dict[SiteKind, RankUse] = {"latent": RankUse()}
        if experts:
            self._rank_uses["experts"] = RankUse()
        self._latent_bytes = 0
        """What a token takes in one layer with latent attention."""

    def around(self, method: QuantizationMethod) -> QuantizationMethod:
        """See ``LayerAdapters``."""
        return AdaptedLinear(method, self, "linear")

    def of_head(self, layer: nn.Module, method: QuantizationMethod) -> QuantizationMethod:
        """See ``LayerAdapters``."""
        head, adapted = cast(LMHead, layer), AdaptedLinear(method, self, "head")
        adapted.part_ends = self.add(
            head,
            Shard.whole(head.hidden_size),
            {head.name: [head.rows.shard]},
            shape=(head.hidden_size, head.rows.padded_size),
            like=head.like,
        )
        self._is_at("head", head.name, self._pools[-1])
        if head.tied_to is not None:
            self.tied = {head.name, head.tied_to}
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
            is_grouped=False,
        )
        self._is_at("embedding", embedding.name, embedding.weight)
        down_PQV, up_PD = self._pools[-2:]
        return AdaptedEmbedding(down_PQV[:, 0], up_PD, self)

    def of_experts(self, layer: nn.Module) -> AdaptedExperts | None:
        """See ``LayerAdapters``."""
        use = self._rank_uses.get("experts")
        if use is None:
            return None
        moe = cast(MoE, layer)
        if not isinstance(moe.method, UnquantizedExperts):
            raise ModelError(
                f"{moe.name}: adapters of experts need plain ones, and these are stored by "
                f"{type(moe.method).__name__}; leave lora_experts out"
            )
        hidden, checkpoint = Shard.whole(moe.hidden_size), moe.checkpoint
        stacked = checkpoint if isinstance(checkpoint, StackedTensors) else StackedTensors()
        return AdaptedExperts(
            self._stacked(moe, "gate_up", hidden, moe.part, 2, stacked),
            self._stacked(moe, "down", moe.part, hidden, 1, stacked),
            use,
        )

    def of_latent(self, layer: nn.Module) -> AdaptedLatent:
        """See ``LayerAdapters``."""
        attention = cast(LatentAttention, layer)
        name, like = f"{attention.name}.kv_b_proj", attention.kv_a_layernorm.weight
        num_heads, latent_dim = attention.heads.size, attention.latent_dim
        size = attention.plain_dim + attention.value_dim
        self.add(
            attention,
            Shard.whole(latent_dim),
            {name: [attention.heads.scaled(size)]},
            shape=(latent_dim, num_heads * size),
            like=(like.dtype, like.device),
            is_grouped=False,
        )
        self._is_at("latent", name, like)
        token_bytes = self.num_rank_rows * (num_heads * like.element_size() + MASK_BYTES)
        self._latent_bytes = max(self._latent_bytes, token_bytes)
        down_PQL, up_PO = self._pools[-2:]
        return AdaptedLatent(
            down_PQL[:, 0],
            up_PO.unflatten(1, (num_heads, size)),
            attention.plain_dim,
            self._rank_uses["latent"],
        )

    def reorder(self, name: str, order_O: Tensor) -> None:
        """See ``LayerAdapters``."""
        self._orders[name] = order_O

    def _stacked(
        self,
        moe: MoE,
        child: str,
        inputs: Shard,
        outputs: Shard,
        halves: int,
        stacked: StackedTensors,
    ) -> StackedRows:
        like = moe.gate_up_proj
        name, num_experts = f"{moe.name}.experts.{child}_proj", like.shape[0]
        shape = (self.num_rank_rows, num_experts)
        rows = StackedRows(
            torch.zeros(*shape, inputs.size, dtype=like.dtype, device=like.device),
            torch.zeros(*shape, halves, outputs.size, dtype=like.dtype, device=like.device),
            inputs,
            outputs,
            stacked.interleaved,
        )
        moe.register_buffer(f"adapter_{child}_down_PXI", rows.down_PXI, persistent=False)
        moe.register_buffer(f"adapter_{child}_up_PXHO", rows.up_PXHO, persistent=False)
        self._pools += rows.down_PXI, rows.up_PXHO
        self._homes[name].append(rows)
        sizes = num_experts * inputs.total, num_experts * halves * outputs.total
        self.linears[name] = LinearSize(*sizes, stacked.transposed, num_experts)
        self._is_at("experts", name, like)
        return rows

    @property
    def num_bytes(self) -> int:
        """What the pool takes of the device."""
        return sum(pool.numel() * pool.element_size() for pool in self._pools)

    @property
    def sites(self) -> SiteKinds:
        """Where the adapters that lie in the pool may add."""
        return frozenset[SiteKind](("linear",)).union(*self._present.values())

    def begin(self, spans: AdapterSpans) -> None:
        """Take the adapters of the tokens of the step to come.

        An ordinary launch, as the embedding's is, must come before the first linear's: kernels of
        linears fetch what they need while what stands in front of them still runs.
        """
        self.spans = spans
        self.groups = {"linear": self._grouped(spans, settled=True)}
        self._begin_at("embedding", spans)
        others_TP = self._others(spans) if self._rank_uses.keys() & spans.sites else None
        for kind, use in self._rank_uses.items():
            use.others_TP = others_TP if kind in spans.sites else None

    def begin_logits(self, spans: AdapterSpans | None) -> None:
        """Take those of the rows whose logits are to come; None: no row has one."""
        self.groups.pop("head", None)
        if spans is not None:
            self._begin_at("head", spans)

    def end(self) -> None:
        """No token has an adapter, unless the step begins."""
        self.spans = None
        self.groups = {}
        for use in self._rank_uses.values():
            use.others_TP = None

    def _begin_at(self, kind: SiteKind, spans: AdapterSpans) -> None:
        if kind in spans.sites:
            ranks = self._rare[kind].ranks_P.index_select(0, spans.first).minimum(spans.rank)
            self.groups[kind] = self._grouped(spans._replace(rank=ranks))

    def _others(self, spans: AdapterSpans) -> Tensor:
        past_TP = torch.arange(self.num_rank_rows, device=spans.first.device) - spans.first[:, None]
        return (past_TP < 0) | (past_TP >= spans.rank[:, None])

    def _grouped(self, spans: AdapterSpans, *, settled: bool = False) -> TokenGroups:
        return group_tokens(
            spans.first,
            spans.rank,
            pool_rows=self.num_rank_rows,
            max_rank=self._max_rank,
            batch_invariant=self.batch_invariant,
            settled=settled,
        )

    def sums_bytes(self, num_tokens: int) -> int:
        """Scratch of one linear in a step of so many tokens."""
        invariant = self.batch_invariant
        kept_ranks = self._max_rank + RANK_STEP
        lookup = LOOKUP_BYTES * kept_ranks if "embedding" in self._rare else 0
        return max(
            num_tokens * lookup,
            num_tokens * self._latent_bytes,
            SCRATCH_BYTES if "experts" in self._rare else 0,
            *(
                max(
                    sums_bytes(num_tokens, *shape, self._max_rank, batch_invariant=invariant),
                    0 if invariant else rooms_bytes(num_tokens, *shape, self._max_rank),
                )
                for shape in self._shrinks
            ),
        )

    def load(self, load: AdapterLoad) -> None:
        """Put an adapter where the scheduler says; what it does not touch becomes zero there."""
        first, rank = load.span
        for pool in self._pools:
            pool[first : first + rank].zero_()
        shapes = load.adapter.head.shapes
        self._present = {
            span: sites
            for span, sites in self._present.items()
            if span.first + span.length <= first or first + rank <= span.first
        }
        self._present[load.span] = set()
        for kind, rare in self._rare.items():
            ranks = [shapes[name][0] for name in rare.names if name in shapes]
            rare.ranks_P[first] = max(ranks, default=0)
            if ranks:
                self._present[load.span].add(kind)
        for name, down_RI, up_RO in matrices(load.adapter):
            rows = slice(first, first + len(down_RI))
            if (order_O := self._orders.get(name)) is not None:
                up_RO = up_RO[:, order_O]
            for home in self._homes.get(name, ()):
                home.load(rows, down_RI, up_RO)

    def add(
        self,
        layer: nn.Module,
        inputs: Shard,
        parts: Mapping[str, Sequence[Shard]],
        *,
        shape: tuple[int, int],
        like: tuple[torch.dtype, torch.device],
        transposed: bool = False,
        is_grouped: bool = True,
    ) -> tuple[int, ...]:
        """Make the rows of a layer and return where its parts end.

        ``parts`` are what adapters name, with their outputs here. ``shape`` are the inputs and
        outputs that the layer has, which may be padded. Without ``is_grouped`` what adds does
        not go by the step's groups of tokens.
        """
        (num_inputs, num_outputs), (dtype, device) = shape, like
        num_rows = self.num_rank_rows
        down_PQI = torch.zeros(num_rows, len(parts), num_inputs, dtype=dtype, device=device)
        up_PO = torch.zeros(num_rows, num_outputs, dtype=dtype, device=device)
        layer.register_buffer("adapter_down_PQI", down_PQI, persistent=False)
        layer.register_buffer("adapter_up_PO", up_PO, persistent=False)
        self._pools += down_PQI, up_PO
        if is_grouped:
            self._shrinks.add((num_inputs, len(parts)))
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

    def _is_at(self, kind: SiteKind, name: str, weight: Tensor) -> None:
        if kind not in self._rare:
            no_ranks = torch.zeros(self.num_rank_rows, dtype=torch.int32, device=weight.device)
            self._rare[kind] = _Rare(no_ranks)
        self._rare[kind].names.append(name)


@dataclass(slots=True)
class _Rare:
    """A kind of site that few adapters touch."""

    ranks_P: Tensor
    """At an adapter's first row its rank here."""
    names: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Home:
    """Where one linear of a checkpoint has its matrices."""

    down_PI: Tensor
    inputs: slice
    ups: list[tuple[Tensor, slice]] = field(default_factory=list)
    """Columns of the pool, and the adapter's outputs that go there."""

    def load(self, rows: slice, down_RI: Tensor, up_RO: Tensor) -> None:
        """Copy an adapter's matrices."""
        self.down_PI[rows].copy_(down_RI[:, self.inputs], non_blocking=True)
        for up_PO, outputs in self.ups:
            up_PO[rows].copy_(up_RO[:, outputs], non_blocking=True)


def _slice(shard: Shard) -> slice:
    return slice(shard.first, shard.first + shard.size)
