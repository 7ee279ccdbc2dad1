"""What RMS normalisation is; computed in float32 whatever the input."""

import torch
from torch import Tensor


def rms_norm(x_TD: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """Return x / rms(x) * weight, in x's dtype; x is rounded to it before the weight is applied."""
    x32_TD = x_TD.float()
    inverse_T1 = torch.rsqrt(x32_TD.square().mean(-1, keepdim=True).add_(eps))
    return (x32_TD * inverse_T1).to(x_TD.dtype).mul_(weight_D)


def add_rms_norm(x_TD: Tensor, residual_TD: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """Add x to the residual in place, rounded to its dtype, and return that sum's norm."""
    return rms_norm(residual_TD.add_(x_TD), weight_D, eps)
