"""Mixture-of-experts layers.

Axis suffixes: T tokens, X experts, K chosen experts, D hidden, I intermediate of this rank, E gate
and up features of this rank (2 I, gates first).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from octavo.errors import ModelError
from octavo.layers.linear import Linear
from octavo.layers.loading import Source
from octavo.layers.mlp import GATED_ACTIVATIONS, GatedMLP
from octavo.layers.sharding import collectives_of, rank_shard
from octavo_kernels.moe import experts, lacking, route
from octavo_registry.model import ModelSpec
from octavo_registry.sites import Shard

EXPERT_ACTIVATIONS: dict[str, str] = {**GATED_ACTIVATIONS, "swiglu_oai": "swiglu_oai"}
"""By their names in config.json's ``hidden_act``; gpt-oss does not name its own there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """How a token's experts are chosen and weighted; see ``octavo_kernels.moe.route``."""

    num_experts: int
    chosen: int
    score: Literal["softmax", "sigmoid", "softmax_after"] = "softmax"
    renormalize: bool = True
    groups: tuple[int, int] | None = None
    scale: float = 1.0
    router: str = "gate"
    """Name of the router's linear, next to the experts."""
    router_bias: bool = False
    router_in_float32: bool = False
    """The product with the router is too, in models of 16 bits."""
    choice_bias: str | None = None
    """Name of the float32 tensor that counts for the choice only, None where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertTensors:
    """A checkpoint with tensors of its own for each expert, by its number."""

    gate: str = "experts.{}.gate_proj"
    up: str = "experts.{}.up_proj"
    down: str = "experts.{}.down_proj"


@dataclass(frozen=True, slots=True, kw_only=True)
class StackedTensors:
    """A checkpoint with one tensor for all experts; biases are named with ``_bias`` behind it."""

    gate_up: str = "experts.gate_up_proj"
    down: str = "experts.down_proj"
    transposed: bool = False
    """Inputs stand before outputs."""
    interleaved: bool = False
    """Gates and ups take turns, instead of all gates first."""


class MoE(nn.Module):
    """The sum over a token's experts of weight * down(activation(gate(x)) * up(x)).

    The result of ``shared``, which every token passes, is added to it. Each rank holds a part of
    every expert's intermediate features, as of a ``GatedMLP``'s.
    """

    def __init__(
        self,
        name: str,
        hidden_size: int,
        intermediate_size: int,
        *,
        routing: Routing,
        activation: str,
        bias: bool = False,
        checkpoint: ExpertTensors | StackedTensors | None = None,
        shared: GatedMLP | None = None,
        spec: ModelSpec,
    ) -> None:
        super().__init__()
        if activation not in EXPERT_ACTIVATIONS:
            known = ", ".join(EXPERT_ACTIVATIONS)
            raise ModelError(f"hidden_act={activation!r} of {name} is not known; known: {known}")
        if spec.quantization is not None:
            raise ModelError(
                f"{name}: experts cannot be quantized yet; load {spec.architecture} unquantized"
            )
        self.name = name
        self.routing = routing
        self.activation = EXPERT_ACTIVATIONS[activation]
        self.checkpoint = checkpoint or ExpertTensors()
        self.hidden_size = hidden_size
        self.shared_experts = shared
        self.part = rank_shard(intermediate_size, spec, f"intermediate features of {name}")
        self._collectives = collectives_of(spec)
        self.adds_bias = spec.tp_rank == 0
        num_experts, part = routing.num_experts, self.part.size
        lack = lacking(spec.dtype, num_experts, hidden_size, part, spec.device)
        if lack is not None:
            raise ModelError(f"{name}: its experts {lack}")
        self._check_routing()
        self.router = Linear(
            f"{name}.{routing.router}",
            Shard.whole(hidden_size),
            [(f"{name}.{routing.router}", Shard.whole(num_experts))],
            bias=routing.router_bias,
            spec=replace(spec, dtype=torch.float32) if routing.router_in_float32 else spec,
        )

        def parameter(*shape: int, dtype: torch.dtype = spec.dtype) -> nn.Parameter:
            empty = torch.empty(shape, dtype=dtype, device=spec.device)
            return nn.Parameter(empty, requires_grad=False)

        self.gate_up_proj = parameter(num_experts, 2 * part, hidden_size)
        self.down_proj = parameter(num_experts, hidden_size, part)
        self.gate_up_bias = parameter(num_experts, 2 * part) if bias else None
        self.down_bias = parameter(num_experts, hidden_size) if bias else None
        self.choice_bias = (
            parameter(num_experts, dtype=torch.float32) if routing.choice_bias else None
        )
        self._adapters = None if spec.adapters is None else spec.adapters.of_experts(self)

    def _check_routing(self) -> None:
        """Raise at load for what the kernel would refuse in every step."""
        routing = self.routing
        try:
            route(
                torch.zeros(0, routing.num_experts, device="cpu"),
                routing.chosen,
                renormalize=routing.renormalize,
                score=routing.score,
                groups=routing.groups,
                scale=routing.scale,
            )
        except ValueError as error:
            raise ModelError(f"{self.name}: {error}") from error

    def forward(self, x_TD: Tensor) -> Tensor:
        """The layer's result [T, D], without the residual."""
        out_TD = self._experts(x_TD)
        if self._collectives is not None:
            out_TD = self._collectives.all_reduce(out_TD)
        return out_TD if self.shared_experts is None else self.shared_experts.add_to(out_TD, x_TD)

    def add_to(self, residual_TD: Tensor, x_TD: Tensor) -> Tensor:
        """Add the layer's result for x to the residual stream in place, and return it."""
        if self._collectives is not None:
            return residual_TD.add_(self(x_TD))
        self._experts(x_TD, residual_TD)
        if self.shared_experts is not None:
            self.shared_experts.add_to(residual_TD, x_TD)
        return residual_TD

    def _experts(self, x_TD: Tensor, residual_TD: Tensor | None = None) -> Tensor:
        routing = self.routing
        ids_TK, weights_TK = route(
            self.router(x_TD.float() if routing.router_in_float32 else x_TD),
            routing.chosen,
            renormalize=routing.renormalize,
            score=routing.score,
            bias_X=self.choice_bias,
            groups=routing.groups,
            scale=routing.scale,
        )
        if self._adapters is not None:
            adapted_TD = self._adapters.sum_of(self, x_TD, ids_TK, weights_TK)
            if adapted_TD is not None:
                return adapted_TD if residual_TD is None else residual_TD.add_(adapted_TD)
        return experts(
            x_TD,
            self.gate_up_proj,
            self.down_proj,
            ids_TK,
            weights_TK,
            activation=self.activation,
            bias_XE=self.gate_up_bias,
            bias_XD=self.down_bias if self.adds_bias else None,
            residual_TD=residual_TD,
        )

    def sources(self) -> Iterator[Source]:
        """See ``LoadsWeights``; the router tells its own."""
        if self.choice_bias is not None:
            yield _source(f"{self.name}.{self.routing.choice_bias}", self.choice_bias)
        if isinstance(self.checkpoint, StackedTensors):
            yield from self._stacked_sources(self.checkpoint)
        else:
            yield from self._expert_sources(self.checkpoint)

    def _expert_sources(self, names: ExpertTensors) -> Iterator[Source]:
        part, whole = self.part, Shard.whole(self.hidden_size)
        for expert in range(self.routing.num_experts):
            for half, child in enumerate((names.gate, names.up)):
                name = f"{self.name}.{child.format(expert)}"
                rows = slice(half * part.size, (half + 1) * part.size)
                weight_ID = self.gate_up_proj.data[expert, rows]
                yield _source(f"{name}.weight", self.gate_up_proj, weight_ID, part, whole)
                if self.gate_up_bias is not None:
                    bias_I = self.gate_up_bias.data[expert, rows]
                    yield _source(f"{name}.bias", self.gate_up_bias, bias_I, part)
            name = f"{self.name}.{names.down.format(expert)}"
            weight_DI = self.down_proj.data[expert]
            yield _source(f"{name}.weight", self.down_proj, weight_DI, whole, part)
            if self.down_bias is not None:
                yield _source(f"{name}.bias", self.down_bias, self.down_bias.data[expert])

    def _stacked_sources(self, names: StackedTensors) -> Iterator[Source]:
        all_experts, hidden = slice(None), slice(None)
        num_experts, part = self.routing.num_experts, self.part
        gate_up, down = f"{self.name}.{names.gate_up}", f"{self.name}.{names.down}"

        def turned(*axes: int) -> tuple[int, ...]:
            return (axes[0], axes[2], axes[1]) if names.transposed else axes

        for half in range(2):
            if names.interleaved:
                taken = slice(2 * part.first + half, 2 * (part.first + part.size), 2)
            else:
                first = half * part.total + part.first
                taken = slice(first, first + part.size)
            rows = slice(half * part.size, (half + 1) * part.size)
            weight_XID = self.gate_up_proj.data[:, rows]
            yield Source(
                name=gate_up,
                shape=turned(num_experts, 2 * part.total, self.hidden_size),
                part=(all_experts, hidden, taken)
                if names.transposed
                else (all_experts, taken, hidden),
                target=weight_XID.mT if names.transposed else weight_XID,
                parameter=self.gate_up_proj,
            )
            if self.gate_up_bias is not None:
                yield Source(
                    name=f"{gate_up}_bias",
                    shape=(num_experts, 2 * part.total),
                    part=(all_experts, taken),
                    target=self.gate_up_bias.data[:, rows],
                    parameter=self.gate_up_bias,
                )
        taken = slice(part.first, part.first + part.size)
        yield Source(
            name=down,
            shape=turned(num_experts, self.hidden_size, part.total),
            part=(all_experts, taken, hidden) if names.transposed else (all_experts, hidden, taken),
            target=self.down_proj.data.mT if names.transposed else self.down_proj.data,
            parameter=self.down_proj,
        )
        if self.down_bias is not None:
            yield _source(f"{down}_bias", self.down_bias)


def _source(
    name: str, parameter: nn.Parameter, target: Tensor | None = None, *shards: Shard
) -> Source:
    """What fills ``target``, by default the parameter: whole, or cut along its axes by shards."""
    target = parameter.data if target is None else target
    shards = shards or tuple(Shard.whole(size) for size in target.shape)
    return Source(
        name=name,
        shape=tuple(shard.total for shard in shards),
        part=tuple(slice(shard.first, shard.first + shard.size) for shard in shards),
        target=target,
        parameter=parameter,
    )
