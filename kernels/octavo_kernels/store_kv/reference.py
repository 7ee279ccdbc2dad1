"""What happens to queries, keys and values before attention; axis suffixes as in the package."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo_kernels.rms_norm.reference import rms_norm


def transform(
    x_THD: Tensor,
    norm_D: Tensor | None,
    cos_TF: Tensor | None,
    sin_TF: Tensor | None,
    eps: float,
) -> Tensor:
    """Return x with each head normalised, if there is a weight, then turned, if there are angles.

    The norm rounds as ``rms_norm`` does; the rotation is computed in float32 and rounded once.
    """
    if norm_D is not None:
        x_THD = rms_norm(x_THD, norm_D, eps)
    if cos_TF is None or sin_TF is None:
        return x_THD
    num_pairs = cos_TF.shape[1]
    cos_T1F, sin_T1F = cos_TF.float().unsqueeze(1), sin_TF.float().unsqueeze(1)
    first_THF = x_THD[..., :num_pairs].float()
    second_THF = x_THD[..., num_pairs : 2 * num_pairs].float()
    turned = (
        first_THF * cos_T1F - second_THF * sin_T1F,
        second_THF * cos_T1F + first_THF * sin_T1F,
    )
    rest_THD = x_THD[..., 2 * num_pairs :]
    return torch.cat((*(part.to(x_THD.dtype) for part in turned), rest_THD), dim=-1)


def write(cache_BN: Tensor, x_T: Tensor, slots_T: Tensor, scale: float) -> None:
    """Write each token's x at its slot of a cache whose first axes are blocks and their tokens."""
    block_tokens = cache_BN.shape[1]
    if cache_BN.dtype == torch.float8_e4m3fn:
        limit = torch.finfo(torch.float8_e4m3fn).max
        x_T = (x_T.float() / scale).clamp(-limit, limit).to(cache_BN.dtype)
        # Indexed writes know no float8: the bytes are written instead.
        cache_BN, x_T = cache_BN.view(torch.uint8), x_T.view(torch.uint8)
    cache_BN[slots_T // block_tokens, slots_T % block_tokens] = x_T


def store_kv(
    q_THD: Tensor,
    k_TKD: Tensor,
    v_TKD: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slots_T: Tensor,
    cos_TF: Tensor | None,
    sin_TF: Tensor | None,
    q_norm_D: Tensor | None,
    k_norm_D: Tensor | None,
    eps: float,
    k_scale: float,
    v_scale: float,
) -> None:
    """Transform q in place; transform k and write it and v at their slots of either layout."""
    q_THD.copy_(transform(q_THD, q_norm_D, cos_TF, sin_TF, eps))
    k_TKD = transform(k_TKD, k_norm_D, cos_TF, sin_TF, eps)
    if key_cache.dim() == 4:
        write(key_cache.transpose(1, 2), k_TKD, slots_T, k_scale)
        write(value_cache.transpose(1, 2), v_TKD, slots_T, v_scale)
    else:
        pieces = k_TKD.unflatten(-1, (-1, key_cache.shape[-1]))
        write(key_cache.permute(0, 3, 1, 2, 4), pieces, slots_T, k_scale)
        write(value_cache.permute(0, 3, 1, 2), v_TKD, slots_T, v_scale)
