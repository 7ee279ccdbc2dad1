"""What is done to queries and keys before they meet, in torch."""

from __future__ import annotations

from torch import Tensor

from octavo_kernels.rms_norm import rms_norm
from octavo_kernels.rotary import rotary_
from octavo_registry.attention import QKTransform


def transformed(
    q_THD: Tensor, k_TKD: Tensor | None, transform: QKTransform
) -> tuple[Tensor, Tensor | None]:
    """Queries and keys as they are stored and compared; rotated in place."""
    if transform.q_norm_D is not None:
        q_THD = rms_norm(q_THD, transform.q_norm_D, transform.eps)
    if transform.k_norm_D is not None and k_TKD is not None:
        k_TKD = rms_norm(k_TKD, transform.k_norm_D, transform.eps)
    if transform.cos_TF is not None and transform.sin_TF is not None:
        rotary_(q_THD, transform.cos_TF, transform.sin_TF)
        if k_TKD is not None:
            rotary_(k_TKD, transform.cos_TF, transform.sin_TF)
    return q_THD, k_TKD
