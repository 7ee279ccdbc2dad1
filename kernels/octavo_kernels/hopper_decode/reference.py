"""What decoding attention is: each row's one query over what the cache holds of its row."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo_kernels.store_kv.reference import store_kv


def decode(
    q_RHD: Tensor,
    cache: Tensor,
    table_SB: Tensor,
    table_rows_R: Tensor,
    context_lens_R: Tensor,
    out_RHD: Tensor,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks_H: Tensor | None = None,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    k_RKD: Tensor | None = None,
    v_RKD: Tensor | None = None,
    slots_R: Tensor | None = None,
    cos_RF: Tensor | None = None,
    sin_RF: Tensor | None = None,
    q_norm_D: Tensor | None = None,
    k_norm_D: Tensor | None = None,
    eps: float = 1e-6,
) -> None:
    """Row by row in float32."""
    if k_RKD is not None and v_RKD is not None and slots_R is not None:
        there_R = context_lens_R > 0
        new_q_RHD = q_RHD[there_R]
        store_kv(
            new_q_RHD,
            k_RKD[there_R],
            v_RKD[there_R],
            cache[:, 0],
            cache[:, 1],
            slots_R[there_R],
            None if cos_RF is None else cos_RF[there_R],
            None if sin_RF is None else sin_RF[there_R],
            q_norm_D,
            k_norm_D,
            eps,
            k_scale,
            v_scale,
        )
        q_RHD = q_RHD.index_put((there_R,), new_q_RHD)
    _, _, kv_heads, block_tokens, _ = cache.shape
    _, heads, head_dim = q_RHD.shape
    group = heads // kv_heads
    for row, context in enumerate(context_lens_R.tolist()):
        if context == 0:
            continue
        first = 0 if window is None else max(context - window, 0)
        positions_C = torch.arange(first, context, device=cache.device)
        blocks_C = table_SB[table_rows_R[row].long()].long()[positions_C // block_tokens]
        keys_CKD = cache[blocks_C, 0, :, positions_C % block_tokens].float() * k_scale
        values_CKD = cache[blocks_C, 1, :, positions_C % block_tokens].float() * v_scale
        q_KGD = q_RHD[row].float().view(kv_heads, group, head_dim)
        scores_KGC = torch.einsum("kgd,ckd->kgc", q_KGD, keys_CKD) * scale
        if softcap is not None:
            scores_KGC = softcap * torch.tanh(scores_KGC / softcap)
        if sinks_H is not None:
            sinks_KG1 = sinks_H.float().view(kv_heads, group, 1)
            scores_KGC = torch.cat((scores_KGC, sinks_KG1), dim=-1)
        weights_KGC = scores_KGC.softmax(-1)[..., : len(positions_C)]
        out_KGD = torch.einsum("kgc,ckd->kgd", weights_KGC, values_CKD)
        out_RHD[row] = out_KGD.reshape(heads, head_dim).to(out_RHD.dtype)
