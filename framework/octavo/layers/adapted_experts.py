"""Experts with LoRA adapters, in plain batched products of all experts with all tokens.

Nothing depends on which experts tokens chose, so that a graph can record it and nobody waits. It
costs what the experts that a token did not choose cost: with few tokens, which choose nearly all
experts among them anyway, about the weights' second reading; with many, as many times the products
as there are experts to each chosen one. Axis suffixes: T tokens, X experts, K chosen experts, D
hidden, I inputs, O outputs, H halves of them (gates and ups), P rank rows, R those of one adapter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

import torch
from torch import Tensor, nn

from octavo_kernels.moe.reference import ACTIVATIONS
from octavo_registry.sites import Shard

if TYPE_CHECKING:
    from octavo.layers.moe import MoE

SCRATCH_BYTES: Final = 256 << 20
"""Tokens pass in groups that need no more."""


@dataclass(frozen=True, slots=True)
class StackedRows:
    """The rank rows of one tensor of all experts."""

    down_PXI: Tensor
    up_PXHO: Tensor
    inputs: Shard
    outputs: Shard
    """How each half's outputs are cut."""
    interleaved: bool
    """Gates and ups take turns in what an adapter has."""

    def load(self, rows: slice, down_RI: Tensor, up_RO: Tensor) -> None:
        """Copy an adapter's matrices, which have all experts' inputs and outputs side by side."""
        _, num_experts, halves, _ = self.up_PXHO.shape
        down_RXI = down_RI.unflatten(1, (num_experts, -1))
        if self.interleaved:
            up_RXHO = up_RO.unflatten(1, (num_experts, -1, halves)).mT
        else:
            up_RXHO = up_RO.unflatten(1, (num_experts, halves, -1))
        self.down_PXI[rows].copy_(_part(down_RXI, self.inputs), non_blocking=True)
        self.up_PXHO[rows].copy_(_part(up_RXHO, self.outputs), non_blocking=True)

    def product(
        self, x_XTI: Tensor, weight_XOI: Tensor, bias_XO: Tensor | None, others_TP: Tensor
    ) -> Tensor:
        """All experts' outputs [X, T, O]; rank rows of ``others_TP`` add nothing."""
        out_XTO = torch.bmm(x_XTI, weight_XOI.mT)
        sums_XTP = torch.bmm(x_XTI, self.down_PXI.permute(1, 2, 0))
        sums_XTP.masked_fill_(others_TP, 0)
        out_XTO.baddbmm_(sums_XTP, self.up_PXHO.flatten(2).transpose(0, 1))
        return out_XTO if bias_XO is None else out_XTO.add_(bias_XO.unsqueeze(1))


@dataclass(slots=True)
class RankUse:
    """Which rank rows belong to others, not to the token of the step that runs."""

    others_TP: Tensor | None = None
    """None: no token has an adapter there."""


@dataclass(frozen=True, slots=True)
class AdaptedExperts:
    """The two tensors' rows of one layer."""

    gate_up: StackedRows
    down: StackedRows
    use: RankUse

    def sum_of(
        self, layer: nn.Module, x_TD: Tensor, ids_TK: Tensor, weights_TK: Tensor
    ) -> Tensor | None:
        """See ``ExpertAdapters``."""
        others_TP, moe = self.use.others_TP, cast("MoE", layer)
        if others_TP is None:
            return None
        num_experts, num_outputs, hidden = moe.gate_up_proj.shape
        weight_TX = weights_TK.new_zeros(len(x_TD), num_experts).scatter_(
            1, ids_TK.long(), weights_TK
        )
        entries = num_experts * (num_outputs + moe.down_proj.shape[2] + hidden + others_TP.shape[1])
        num_tokens = max(1, SCRATCH_BYTES // (entries * (x_TD.element_size() + 4)))
        given = (x_TD, weight_TX, others_TP)
        pieces = zip(*(each.split(num_tokens) for each in given), strict=True)
        return torch.cat([self._sum(moe, *piece) for piece in pieces])

    def _sum(self, moe: MoE, x_TD: Tensor, weight_TX: Tensor, others_TP: Tensor) -> Tensor:
        x_XTD = x_TD.expand(weight_TX.shape[1], -1, -1)
        gate_up_XTE = self.gate_up.product(x_XTD, moe.gate_up_proj, moe.gate_up_bias, others_TP)
        between_XTI = ACTIVATIONS[moe.activation](*gate_up_XTE.float().chunk(2, dim=-1))
        bias_XD = moe.down_bias if moe.adds_bias else None
        out_XTD = self.down.product(between_XTI.to(x_TD.dtype), moe.down_proj, bias_XD, others_TP)
        weight_XT1 = weight_TX.T.unsqueeze(2)
        # An expert that was not chosen may have left the range of 16 bits.
        out_XTD = out_XTD.float().masked_fill_(weight_XT1 == 0, 0).mul_(weight_XT1)
        return out_XTD.sum(0).to(x_TD.dtype)


def _part(tensor: Tensor, shard: Shard) -> Tensor:
    return tensor[..., shard.first : shard.first + shard.size]
