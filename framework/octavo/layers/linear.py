"""Linear layers, fused and cut for tensor parallel, with weights that a quantization may replace.

Axis suffixes: T tokens, I inputs of this rank, O outputs of this rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn

from octavo.errors import ModelError
from octavo.layers.apart import Apart
from octavo.layers.loading import Source
from octavo.layers.sharding import collectives_of, kv_heads_shard, rank_shard
from octavo.layers.stored import (
    check_invariance,
    made,
    merged,
    method_at,
    sources,
    stored_sources,
    zero_biases,
)
from octavo.layers.unquantized import UnquantizedLinear
from octavo_kernels.gated_activation import gated_activation, plain_activation
from octavo_registry.linear import (
    Activation,
    FusedProducts,
    PlainActivation,
    QuantizationMethod,
)
from octavo_registry.model import ModelSpec
from octavo_registry.sites import Axis, Shard, Site, SiteKind


class Linear(nn.Module):
    """x @ weight.T + bias on this rank's inputs and outputs.

    ``name`` is the full dotted name, by which adapters and checkpoints address the layer. ``parts``
    are its outputs in order, each with the name of the checkpoint's tensors that hold it; one that
    the checkpoint has fused too names the same tensors for all. ``transposed`` says that weights
    stand there as [in, out].
    """

    def __init__(
        self,
        name: str,
        inputs: Shard,
        parts: Iterable[tuple[str, Shard]],
        *,
        bias: bool,
        spec: ModelSpec,
        transposed: bool = False,
        kind: SiteKind = "linear",
    ) -> None:
        super().__init__()
        self.name = name
        self.inputs = inputs
        self.parts = tuple(parts)
        self.transposed = transposed
        self.in_features = inputs.size
        self.out_features = sum(part.size for _, part in self.parts)
        self.site = Site(name=name, kind=kind, inputs=inputs, parts=merged(self.parts))
        self.method: QuantizationMethod = method_at(
            self.site, spec.quantization
        ) or UnquantizedLinear(batch_invariant=spec.batch_invariant)
        check_invariance(name, self.method, spec)
        if spec.adapters is not None:
            self.method = spec.adapters.around(self.method)
        self._fused = self.method if isinstance(self.method, FusedProducts) else None
        self._axes = made(self, self.method, self.site, spec)
        self._orders: dict[str, Tensor] = {}
        self.bias: nn.Parameter | None = None
        if bias:
            empty_O = torch.empty(self.out_features, dtype=spec.dtype, device=spec.device)
            self.bias = nn.Parameter(empty_O, requires_grad=False)

    def forward(self, x_TI: Tensor) -> Tensor:
        """This rank's outputs [T, O]."""
        return self.method.apply(self, x_TI, self.bias)

    def reorder(self, name: str, order_O: Tensor) -> None:
        """Say before loading which of a part's outputs in the checkpoint is each of the layer's."""
        self._orders[name] = order_O

    def sources(self) -> Iterator[Source]:
        """See ``LoadsWeights``."""
        method = getattr(self.method, "inner", self.method)
        if isinstance(method, Apart):
            yield from method.sources(self, self._orders)
        else:
            yield from stored_sources(
                self, method, self.site, self._axes, self._orders, transposed=self.transposed
            )
        if self.bias is not None:
            bias = {"bias": (Axis("out"),)}
            yield from sources(self, self.site, bias, orders=self._orders)
        else:
            yield from zero_biases(method, self.site.parts)

    def finish_weights(self) -> None:
        """See ``FinishesWeights``."""
        self.method.finish(self)


def _beside(name: str, sibling: str) -> str:
    parent, dot, _ = name.rpartition(".")
    return parent + dot + sibling


def _within(name: str, parts: Iterable[Shard]) -> Iterator[tuple[str, Shard]]:
    """Parts that stand side by side in the tensors of one name."""
    parts = list(parts)
    total, first = sum(part.total for part in parts), 0
    for part in parts:
        yield name, Shard(total=total, first=first + part.first, size=part.size)
        first += part.total


def _parts(
    name: str, children: Iterable[str], shards: Iterable[Shard], stored_fused: bool
) -> Iterator[tuple[str, Shard]]:
    if stored_fused:
        return _within(name, shards)
    return zip((_beside(name, child) for child in children), shards, strict=True)


class ColumnParallelLinear(Linear):
    """Each rank computes an equal part of the outputs; several checkpoint linears may be fused.

    ``outputs`` are the full numbers of outputs by the name in the checkpoint, all next to ``name``:
    ("model.layers.0.mlp.gate_up_proj", {"gate_proj": I, "up_proj": I}). With ``stored_fused`` the
    checkpoint has them side by side under ``name`` itself.
    """

    def __init__(
        self,
        name: str,
        in_features: int,
        outputs: Mapping[str, int],
        *,
        bias: bool,
        spec: ModelSpec,
        stored_fused: bool = False,
        transposed: bool = False,
    ) -> None:
        shards = [
            rank_shard(size, spec, f"outputs of {child} in {name}")
            for child, size in outputs.items()
        ]
        super().__init__(
            name,
            Shard.whole(in_features),
            _parts(name, outputs, shards, stored_fused),
            bias=bias,
            spec=spec,
            transposed=transposed,
        )

    def gated(self, x_TI: Tensor, activation: Activation) -> Tensor:
        """activation(gate) * up for two fused linears, gate and up in this order."""
        if self._fused is not None:
            return self._fused.gated(self, x_TI, self.bias, activation)
        return gated_activation(self(x_TI), activation)


class QKVLinear(Linear):
    """Queries, keys and values of this rank's heads in one product, side by side in this order.

    In the checkpoint they are ``names`` next to ``name``, or with ``stored_fused`` ``name`` itself.
    """

    def __init__(
        self,
        name: str,
        in_features: int,
        *,
        heads: int,
        kv_heads: int,
        head_dim: int,
        bias: bool,
        spec: ModelSpec,
        names: tuple[str, str, str] = ("q_proj", "k_proj", "v_proj"),
        stored_fused: bool = False,
        transposed: bool = False,
    ) -> None:
        if min(heads, kv_heads, head_dim) < 1 or heads % kv_heads:
            raise ModelError(
                f"{name}: {heads} attention heads of {head_dim} cannot share {kv_heads} key/value "
                "heads; the number of the former must be a multiple of that of the latter"
            )
        q = rank_shard(heads, spec, f"attention heads of {name}")
        kv = kv_heads_shard(kv_heads, spec, f"key/value heads of {name}")
        super().__init__(
            name,
            Shard.whole(in_features),
            _parts(name, names, [shard.scaled(head_dim) for shard in (q, kv, kv)], stored_fused),
            bias=bias,
            spec=spec,
            transposed=transposed,
        )
        self.heads = q.size
        self.kv_heads = kv.size
        self.head_dim = head_dim

    def heads_of(self, x_TI: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [T, H, D], keys and values [T, K, D], views of one product."""
        qkv_THD = self(x_TI).unflatten(-1, (-1, self.head_dim))
        first_key, first_value = self.heads, self.heads + self.kv_heads
        return qkv_THD[:, :first_key], qkv_THD[:, first_key:first_value], qkv_THD[:, first_value:]


class ReplicatedLinear(Linear):
    """A linear that is whole on every rank."""

    def __init__(
        self, name: str, in_features: int, out_features: int, *, bias: bool, spec: ModelSpec
    ) -> None:
        inputs, outputs = Shard.whole(in_features), Shard.whole(out_features)
        super().__init__(name, inputs, [(name, outputs)], bias=bias, spec=spec)

    def add_to(self, residual_TO: Tensor, x_TI: Tensor) -> Tensor:
        """Add all outputs to the residual stream in place, and return it."""
        if self._fused is not None:
            return self._fused.add_(self, residual_TO, x_TI, self.bias)
        return residual_TO.add_(self(x_TI))

    def activated(self, x_TI: Tensor, activation: PlainActivation) -> Tensor:
        """activation(x @ weight.T + bias)."""
        if self._fused is not None:
            return self._fused.activated(self, x_TI, self.bias, activation)
        return plain_activation(self(x_TI), activation)


class RowParallelLinear(Linear):
    """Each rank multiplies its part of the inputs; the sum over ranks is every rank's result."""

    def __init__(
        self,
        name: str,
        in_features: int,
        out_features: int,
        *,
        bias: bool,
        spec: ModelSpec,
        transposed: bool = False,
    ) -> None:
        super().__init__(
            name,
            rank_shard(in_features, spec, f"inputs of {name}"),
            [(name, Shard.whole(out_features))],
            bias=bias,
            spec=spec,
            transposed=transposed,
        )
        self._collectives = collectives_of(spec)
        self._adds_bias = spec.tp_rank == 0

    def forward(self, x_TI: Tensor) -> Tensor:
        """All outputs [T, O], summed over the ranks."""
        out_TO = self.method.apply(self, x_TI, self.bias if self._adds_bias else None)
        return out_TO if self._collectives is None else self._collectives.all_reduce(out_TO)

    def add_to(self, residual_TO: Tensor, x_TI: Tensor) -> Tensor:
        """Add all outputs to the residual stream in place, and return it."""
        if self._fused is not None and self._collectives is None:
            return self._fused.add_(self, residual_TO, x_TI, self.bias)
        return residual_TO.add_(self(x_TI))
