"""What dense attention is, by PyTorch's; axis suffixes as in the package's docstring."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch
import torch.nn.functional as F
from torch import Tensor


def dense_attention(
    q_PHE: Tensor, k_PHE: Tensor, v_PHE: Tensor, lengths: Sequence[int], seen: Sequence[int]
) -> Tensor:
    """Neighbours of one length, of which as much is seen, are computed together."""
    attended, start = [], 0
    for (length, keys), equal in groupby(zip(lengths, seen, strict=True)):
        count = len(list(equal))
        end = start + count * length
        q, k, v = (
            each[start:end].unflatten(0, (count, length)).transpose(1, 2)
            for each in (q_PHE, k_PHE, v_PHE)
        )
        attended_NHPE = F.scaled_dot_product_attention(q, k[:, :, :keys], v[:, :, :keys])
        attended.append(attended_NHPE.transpose(1, 2).flatten(0, 1))
        start = end
    return attended[0] if len(attended) == 1 else torch.cat(attended)
