"""Experts with plain weights. Axis suffixes as in ``octavo.layers.moe``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from octavo.errors import ModelError
from octavo_kernels.moe import experts, lacking
from octavo_registry.linear import ExpertsParameter
from octavo_registry.sites import Axis, ExpertsSite

if TYPE_CHECKING:
    from octavo.layers.moe import MoE


class UnquantizedExperts:
    """The method of experts that nothing quantizes: ``gate_up_proj`` and ``down_proj``."""

    batch_invariant = True
    unit = 1

    def create(
        self, layer: nn.Module, site: ExpertsSite, *, dtype: torch.dtype, device: torch.device
    ) -> Mapping[str, ExpertsParameter]:
        """See ``ExpertsMethod``; sizes without a kernel are refused."""
        hidden, features = site.gate_up.in_features, site.down.in_features
        lack = lacking(dtype, site.num_experts, hidden, features, device)
        if lack is not None:
            raise ModelError(f"{site.name}: its experts {lack}")
        axes = (Axis("out"), Axis("in"))
        for name, stack in (("gate_up_proj", site.gate_up), ("down_proj", site.down)):
            shape = (site.num_experts, *stack.shape(*axes))
            empty = torch.empty(shape, dtype=dtype, device=device)
            setattr(layer, name, nn.Parameter(empty, requires_grad=False))
        return {
            "gate_up_proj": ExpertsParameter("gate_up", "weight", axes),
            "down_proj": ExpertsParameter("down", "weight", axes),
        }

    def finish(self, layer: nn.Module) -> None:
        """See ``ExpertsMethod``; they are multiplied as they are stored."""

    def dequantize(self, layer: nn.Module) -> tuple[Tensor, Tensor]:
        """See ``ExpertsMethod``."""
        moe = cast("MoE", layer)
        return moe.gate_up_proj.float(), moe.down_proj.float()

    def sum_of(
        self,
        layer: nn.Module,
        x_TD: Tensor,
        ids_TK: Tensor,
        weights_TK: Tensor,
        residual_TD: Tensor | None,
    ) -> Tensor:
        """See ``ExpertsMethod``."""
        moe = cast("MoE", layer)
        stacks = moe.gate_up_proj, moe.down_proj
        return sum_by(moe, *stacks, x_TD, ids_TK, weights_TK, residual_TD)


def sum_by(
    moe: MoE,
    gate_up_XED: Tensor,
    down_XDI: Tensor,
    x_TD: Tensor,
    ids_TK: Tensor,
    weights_TK: Tensor,
    residual_TD: Tensor | None,
) -> Tensor:
    """What ``ExpertsMethod.sum_of`` returns, by plain weights of x's dtype."""
    return experts(
        x_TD,
        gate_up_XED,
        down_XDI,
        ids_TK,
        weights_TK,
        activation=moe.activation,
        bias_XE=moe.gate_up_bias,
        bias_XD=moe.down_bias if moe.adds_bias else None,
        residual_TD=residual_TD,
    )
