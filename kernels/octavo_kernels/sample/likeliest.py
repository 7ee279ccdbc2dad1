"""The likeliest tokens in a fixed order, also where logits are equal."""

from __future__ import annotations

import torch
from torch import Tensor


def likeliest(scores_GV: Tensor, count: int) -> Tensor:
    """Ids [G, count] by falling float32 score, equal scores by rising id.

    16-bit logits tie often, and topk leaves the choice among ties to the algorithm it picks, which
    depends on the batch. So score and id are packed into one integer: no two are equal.
    """
    bits_GV = scores_GV.add(0.0).view(torch.int32)  # -0.0 becomes 0.0
    # Negative floats order backwards as integers until all bits but the sign are flipped.
    bits_GV = bits_GV.bitwise_xor_((bits_GV >> 31).bitwise_and_(0x7FFFFFFF))
    ids_V = torch.arange(scores_GV.shape[1], device=scores_GV.device)
    keys_GV = bits_GV.to(torch.int64).mul_(2**32).sub_(ids_V)
    return keys_GV.topk(count).values.neg_().bitwise_and_(2**32 - 1)
