"""What paged prefill attention is; axis suffixes as in the package's docstring, float32 inside."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def prefill(
    q_THD: Tensor,
    cache: Tensor,
    table_SB: Tensor,
    table_rows_R: Tensor,
    query_starts_R1: Tensor,
    context_lens_R: Tensor,
    out_THD: Tensor,
    *,
    first_row: int,
    query_lens_R: NDArray[np.int32],
    scale: float,
    causal: bool,
    window: int | None,
    softcap: float | None,
    sinks_H: Tensor | None,
    k_scale: float,
    v_scale: float,
) -> None:
    """Attend row by row."""
    block_tokens = cache.shape[3]
    group = q_THD.shape[1] // cache.shape[2]
    for row in range(first_row, len(query_lens_R)):
        start, queries = int(query_starts_R1[row]), int(query_lens_R[row])
        if queries == 0:
            continue
        context = int(context_lens_R[row])
        blocks_B = table_SB[int(table_rows_R[row]), : -(-context // block_tokens)].long()
        # [blocks, 2, kv heads, block, dim] -> [2, heads, context, dim]
        kv_2KCD = cache[blocks_B].float().permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, :context]
        k_HCD, v_HCD = kv_2KCD.repeat_interleave(group, dim=1)
        q_HQD = q_THD[start : start + queries].float().transpose(0, 1)
        scores_HQC = q_HQD @ k_HCD.mT * (scale * k_scale)
        if softcap is not None:
            scores_HQC = (scores_HQC / softcap).tanh() * softcap
        positions_Q1 = torch.arange(context - queries, context, device=q_THD.device)[:, None]
        keys_C = torch.arange(context, device=q_THD.device)
        if causal:
            scores_HQC.masked_fill_(keys_C > positions_Q1, -torch.inf)
        if window is not None:
            scores_HQC.masked_fill_(keys_C <= positions_Q1 - window, -torch.inf)
        if sinks_H is not None:
            sinks_HQ1 = sinks_H.float()[:, None, None].expand(-1, queries, 1)
            scores_HQC = torch.cat([scores_HQC, sinks_HQ1], dim=-1)
        weights_HQC = scores_HQC.softmax(-1)[..., :context]
        out_HQD = weights_HQC @ v_HCD * v_scale
        out_THD[start : start + queries] = out_HQD.transpose(0, 1).to(out_THD.dtype)
