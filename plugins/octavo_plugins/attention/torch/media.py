"""Attention of all heads to rows of encoded media, row of the step by row of the step.

Axis suffixes: T tokens of a step, H query heads, D entries of a row, C rows that are seen.
"""

from __future__ import annotations

import torch
from torch import Tensor

from octavo_plugins.attention.media import MediaPages
from octavo_registry.step import AttentionStep


def attend_media(q_THD: Tensor, pages: MediaPages, step: AttentionStep, scale: float) -> Tensor:
    """Softmax in float32; every query of a row sees all its media."""
    parts = []
    begin = 0
    bounds = step.bounds
    lengths = zip(bounds.query_lens_R.tolist(), bounds.context_lens_R.tolist(), strict=True)
    for row, (num_queries, most) in enumerate(lengths):
        q_HTD = q_THD[begin : begin + num_queries].transpose(0, 1).float()
        begin += num_queries
        positions_C = torch.arange(most, device=q_THD.device)
        line_B = step.table_SB[step.table_rows_R[row].long()].long()
        slots_C = line_B[positions_C // step.block_tokens] * step.block_tokens
        x_CD = pages.cache_LBND[pages.at(slots_C + positions_C % step.block_tokens)].float()
        hidden_C = positions_C >= step.context_lens_R[row]
        x_CD = x_CD.masked_fill(hidden_C[:, None], 0)  # what was never written may be NaN
        scores_HTC = (q_HTD @ x_CD.T * scale).masked_fill(hidden_C, -torch.inf)
        parts.append((scores_HTC.softmax(-1) @ x_CD).transpose(0, 1).to(q_THD.dtype))
    return torch.cat(parts)
