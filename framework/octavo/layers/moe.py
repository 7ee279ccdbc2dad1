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
from octavo.layers.stored import check_invariance, zero_biases
from octavo.layers.stored_experts import (
    ExpertTensors,
    StackedTensors,
    expert_parts,
    expert_sources,
    experts_method_at,
    experts_site,
    made_experts,
)
from octavo_kernels.moe import route
from octavo_registry.linear import ExpertsParameter
from octavo_registry.model import ModelSpec
from octavo_registry.sites import Axis, ExpertsSite, Shard

__all__ = ["EXPERT_ACTIVATIONS", "ExpertTensors", "MoE", "Routing", "StackedTensors"]

EXPERT_ACTIVATIONS: dict[str, str] = {**GATED_ACTIVATIONS, "swiglu_oai": "swiglu_oai"}
"""Experts' activations by name in config.json's ``hidden_act``; gpt-oss does not name its own."""


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


class MoE(nn.Module):
    """The sum over a token's experts of weight * down(activation(gate(x)) * up(x)).

    The result of ``shared``, which every token passes, is added to it. Each rank holds a part of
    every expert's intermediate features, as of a ``GatedMLP``'s.
    """

    gate_up_proj: nn.Parameter
    """The weights of plain experts; a method of others has parameters of its own."""
    down_proj: nn.Parameter

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
        self.name = name
        self.routing = routing
        self.activation = EXPERT_ACTIVATIONS[activation]
        self.checkpoint = checkpoint or ExpertTensors()
        self.hidden_size = hidden_size
        self.shared_experts = shared
        self._collectives = collectives_of(spec)
        self.adds_bias = spec.tp_rank == 0
        num_experts = routing.num_experts
        self._check_routing()
        whole = self._site(Shard.whole(intermediate_size))
        self.method = experts_method_at(whole, spec.quantization)
        check_invariance(name, self.method, spec)
        what = f"intermediate features of {name}"
        self.part = rank_shard(intermediate_size, spec, what, unit=self.method.unit)
        self.site = self._site(self.part)
        self._filled = made_experts(self, self.method, self.site, spec)
        self.router = Linear(
            f"{name}.{routing.router}",
            Shard.whole(hidden_size),
            [(f"{name}.{routing.router}", Shard.whole(num_experts))],
            bias=routing.router_bias,
            kind="router",
            spec=replace(spec, dtype=torch.float32) if routing.router_in_float32 else spec,
        )

        def parameter(*shape: int, dtype: torch.dtype = spec.dtype) -> nn.Parameter:
            empty = torch.empty(shape, dtype=dtype, device=spec.device)
            return nn.Parameter(empty, requires_grad=False)

        self.gate_up_bias: nn.Parameter | None = None
        self.down_bias: nn.Parameter | None = None
        if bias:
            self.gate_up_bias = parameter(num_experts, self.site.gate_up.out_features)
            self.down_bias = parameter(num_experts, hidden_size)
            self.gate_up_bias.data.zero_()  # of features that pad a rank's part
            self._filled["gate_up_bias"] = ExpertsParameter("gate_up", "bias", (Axis("out"),))
            self._filled["down_bias"] = ExpertsParameter("down", "bias", (Axis("out"),))
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
        return self.method.sum_of(self, x_TD, ids_TK, weights_TK, residual_TD)

    def sources(self) -> Iterator[Source]:
        """See ``LoadsWeights``; the router tells its own."""
        if self.choice_bias is not None:
            yield _whole(f"{self.name}.{self.routing.choice_bias}", self.choice_bias)
        yield from expert_sources(self, self.checkpoint, self.site, self._filled)
        if self.gate_up_bias is None:
            yield from zero_biases(self.method, expert_parts(self.checkpoint, self.site))

    def finish_weights(self) -> None:
        """See ``FinishesWeights``."""
        self.method.finish(self)

    def _site(self, features: Shard) -> ExpertsSite:
        hidden = Shard.whole(self.hidden_size)
        return experts_site(self.name, self.checkpoint, self.routing.num_experts, hidden, features)


def _whole(name: str, parameter: nn.Parameter) -> Source:
    return Source(
        name=name,
        shape=tuple(parameter.shape),
        part=(),
        target=parameter.data,
        parameter=parameter,
    )
