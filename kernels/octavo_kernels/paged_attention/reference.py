"""What paged attention is: each token's query over its row's keys and values, row by row.

Axis suffixes as in the package; besides, C the row's cached positions and Q its queries.
"""

from __future__ import annotations

import torch
from torch import Tensor

from octavo_kernels.paged_attention.sparse import BlockSparse


def paged_attention(
    q_THD: Tensor,
    key_cache_BKCNX: Tensor,
    value_cache_BKDN: Tensor,
    table_SB: Tensor,
    token_rows_T: Tensor,
    table_rows_R: Tensor,
    context_lens_R: Tensor,
    positions_T: Tensor,
    out_THD: Tensor,
    scale: float,
    causal: bool,
    window: int | None,
    softcap: float | None,
    sinks_H: Tensor | None,
    alibi_H: Tensor | None,
    k_scale: float,
    v_scale: float,
    sparse: BlockSparse | None,
) -> Tensor:
    """Write the result to ``out_THD`` and return it; computed in float32."""
    heads, (kv_heads, _, block_tokens) = q_THD.shape[1], value_cache_BKDN.shape[1:]
    for row in token_rows_T.unique().tolist():
        tokens_Q = (token_rows_T == row).nonzero().squeeze(1)
        positions_Q = positions_T[tokens_Q]
        length = int(positions_Q.max()) + 1 if causal else int(context_lens_R[row])
        blocks = table_SB[table_rows_R[row], : -(-length // block_tokens)].long()
        keys = _gather(key_cache_BKCNX, blocks).permute(1, 0, 3, 2, 4).flatten(3).flatten(1, 2)
        values = _gather(value_cache_BKDN, blocks).permute(1, 0, 3, 2).flatten(1, 2)
        sees_HQC = _visible(positions_Q, length, heads, causal, window, sparse)
        # What none sees may be NaN, and 0 times it as well.
        is_seen_C1 = sees_HQC.any(0).any(0).unsqueeze(1)
        keys_HCD = (keys[:, :length] * k_scale).where(is_seen_C1, 0.0)
        values_HCD = (values[:, :length] * v_scale).where(is_seen_C1, 0.0)
        keys_HCD = keys_HCD.repeat_interleave(heads // kv_heads, 0)
        values_HCD = values_HCD.repeat_interleave(heads // kv_heads, 0)
        scores_HQC = q_THD[tokens_Q].float().transpose(0, 1) @ keys_HCD.mT * scale
        if softcap is not None:
            scores_HQC = softcap * torch.tanh(scores_HQC / softcap)
        if alibi_H is not None:
            distances_QC = torch.arange(length, device=q_THD.device) - positions_Q.unsqueeze(1)
            scores_HQC = scores_HQC + alibi_H.float()[:, None, None] * distances_QC
        scores_HQC = scores_HQC.where(sees_HQC, -torch.inf)
        if sinks_H is not None:
            sinks_HQ1 = sinks_H.float()[:, None, None].expand(-1, len(tokens_Q), 1)
            scores_HQC = torch.cat((scores_HQC, sinks_HQ1), dim=-1)
        weights_HQC = scores_HQC.softmax(-1)[..., :length]
        out_THD[tokens_Q] = (weights_HQC @ values_HCD).transpose(0, 1).to(out_THD.dtype)
    return out_THD


def _gather(cache: Tensor, blocks: Tensor) -> Tensor:
    """The blocks in float32; float8 tensors cannot be indexed on all devices, their bytes can."""
    return cache.view(torch.uint8)[blocks].view(cache.dtype).float()


def _visible(
    positions_Q: Tensor,
    length: int,
    heads: int,
    causal: bool,
    window: int | None,
    sparse: BlockSparse | None,
) -> Tensor:
    """Which of ``length`` positions each query sees, [H, Q, C]."""
    keys_C = torch.arange(length, device=positions_Q.device)
    ages_QC = positions_Q.unsqueeze(1) - keys_C
    sees_QC = ages_QC >= 0 if causal else torch.ones_like(ages_QC, dtype=torch.bool)
    if window is not None:
        sees_QC = sees_QC & (ages_QC < window)
    sees_HQC = sees_QC.expand(heads, -1, -1)
    if sparse is not None:
        blocks_C = keys_C // sparse.block_tokens
        blocks_Q1 = positions_Q.unsqueeze(1) // sparse.block_tokens
        offsets_H11 = (
            1 + torch.arange(heads, device=keys_C.device)[:, None, None] * sparse.head_step
        )
        stripes_H1C = (blocks_C + offsets_H11) % sparse.vertical_stride == 0
        sees_HQC = sees_HQC & ((blocks_Q1 - blocks_C < sparse.local_blocks) | stripes_H1C)
    return sees_HQC
