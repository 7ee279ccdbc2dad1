"""kv_b_proj with LoRA adapters, where latent attention multiplies it into queries and results.

An adapter makes W + B A of it: what meets a head's key part gets (q B_k) A besides, and what meets
its value part (out A^T) B_v^T. That of the token which attends counts for all positions, as cached
keys are in front of kv_b_proj.

Products are of all rank rows of the pool, and each token keeps those of its own: nobody waits, and
a graph can record them. They are P (N + V + 2 L) a head where kv_b_proj itself has L (N + V), so
about as many with 128 rank rows and DeepSeek's sizes. Axis suffixes: T tokens, H heads, P rank
rows, L compressed, N entries of a head's query, V of its value, B both.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from octavo.layers.adapted_experts import RankUse


@dataclass(frozen=True, slots=True)
class AdaptedLatent:
    """The rank rows of one layer; see ``LatentAdapters``."""

    down_PL: Tensor
    up_PHB: Tensor
    query_dim: int
    use: RankUse

    def add_to_queries_(self, absorbed_HTL: Tensor, q_HTN: Tensor) -> Tensor:
        """See ``LatentAdapters``."""
        if self.use.others_TP is None:
            return absorbed_HTL
        up_HNP = self.up_PHB[..., : self.query_dim].permute(1, 2, 0)
        sums_HTP = torch.bmm(q_HTN, up_HNP).masked_fill_(self.use.others_TP, 0)
        return absorbed_HTL.baddbmm_(sums_HTP, self.down_PL.expand(len(q_HTN), -1, -1))

    def add_to_values_(self, values_HTV: Tensor, out_HTL: Tensor) -> Tensor:
        """See ``LatentAdapters``."""
        if self.use.others_TP is None:
            return values_HTV
        down_HLP = self.down_PL.mT.expand(len(out_HTL), -1, -1)
        sums_HTP = torch.bmm(out_HTL, down_HLP).masked_fill_(self.use.others_TP, 0)
        return values_HTV.baddbmm_(sums_HTP, self.up_PHB[..., self.query_dim :].transpose(0, 1))
