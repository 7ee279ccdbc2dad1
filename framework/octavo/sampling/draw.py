"""One random token a row: temperature, min_p, top_k, top_p, then the draw.

Everything is said in a token's *gap*: how far its score lies below its row's best, over the
temperature, so never negative and 0 for the best. Its weight is exp(-gap), and leaving a token out
means an infinite gap.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from octavo.sampling.features import RowFeature
from octavo.sampling.likeliest import likeliest
from octavo.sampling.noise import log_exponential, row_keys
from octavo.sampling.state import SamplingState


def draw(
    scores_GV: Tensor,
    slots_G: Tensor,
    state: SamplingState,
    features: RowFeature,
    max_top_k: int,
    mixed_ids_V: Tensor,
) -> Tensor:
    """Draw a token id for each row, as a function of its scores, parameters, seed and position.

    ``features`` are those of any row of the group; TOP_K belongs to all of them or to none.
    top_k keeps exactly k tokens, the lower id where scores tie. top_p keeps the fewest tokens that
    hold at least p of what min_p and top_k left, and all that tie with the last of them.
    """
    best_G1 = scores_GV.amax(dim=1, keepdim=True)
    ids_GC: Tensor | None = None
    mixed_ids_GC = mixed_ids_V[None]
    if features & RowFeature.TOP_K:
        ids_GC = likeliest(scores_GV, min(max_top_k, scores_GV.shape[1]))
        mixed_ids_GC = mixed_ids_V[ids_GC]
        gaps_GC = best_G1 - scores_GV.gather(1, ids_GC)
        order_C = torch.arange(ids_GC.shape[1], device=ids_GC.device)
        gaps_GC.masked_fill_(order_C >= state.top_k_S[slots_G, None], math.inf)
    else:
        gaps_GC = best_G1 - scores_GV
    gaps_GC.div_(state.temperature_S[slots_G, None])
    if features & RowFeature.MIN_P:
        gaps_GC.masked_fill_(gaps_GC > -state.min_p_S[slots_G, None].log(), math.inf)
    if features & RowFeature.TOP_P:
        gaps_GC.masked_fill_(gaps_GC > _nucleus(gaps_GC, state.top_p_S[slots_G, None]), math.inf)
    keys = row_keys(state.seed_S2[slots_G], state.num_tokens_S[slots_G])
    winner_G1 = log_exponential(keys, mixed_ids_GC).add_(gaps_GC).argmin(dim=1, keepdim=True)
    return (winner_G1 if ids_GC is None else ids_GC.gather(1, winner_G1))[:, 0]


def _nucleus(gaps_GC: Tensor, top_p_G1: Tensor) -> Tensor:
    """The least gap [G, 1] up to which tokens hold ``top_p`` of the weight; inf for top_p = 1.

    A radix search over the gap's bits, 11 + 10 + 10, by histograms of weight: linear in C, no sort
    (one of [32, 32000] takes a CPU core 77 ms, this 5) and nothing that the host must look at.
    Weights are integers, whose sums depend on no order, so the cut is the same in every batch.
    """
    # The best weighs 2**32; what weighs less than one unit is beyond every nucleus.
    weights_GC = gaps_GC.neg().exp_().mul_(2.0**32).to(torch.int64)
    missing_G1 = (weights_GC.sum(dim=1, keepdim=True) * top_p_G1.double()).ceil_().to(torch.int64)
    bits_GC = gaps_GC.view(torch.int32)  # of floats that are not negative: ordered as they are
    digits_GC = torch.empty_like(weights_GC)
    cut_G1 = torch.zeros_like(missing_G1)
    for shift, num_bits in ((20, 11), (10, 10), (0, 10)):
        digits_GC.copy_(bits_GC).bitwise_right_shift_(shift).bitwise_and_((1 << num_bits) - 1)
        upto_GD = weights_GC.new_zeros(len(weights_GC), 1 << num_bits)
        upto_GD = upto_GD.scatter_add_(1, digits_GC, weights_GC).cumsum(dim=1)
        digit_G1 = (upto_GD < missing_G1).sum(dim=1, keepdim=True)
        below_G1 = upto_GD.gather(1, (digit_G1 - 1).clamp_min_(0))
        missing_G1 -= below_G1.masked_fill_(digit_G1 == 0, 0)
        cut_G1 += digit_G1 << shift
        weights_GC.mul_(digits_GC.eq_(digit_G1))
    return cut_G1.to(torch.int32).view(torch.float32).masked_fill_(top_p_G1 >= 1.0, math.inf)
