"""What layer normalisation is; computed in float32 whatever the input, rounded once."""

import torch.nn.functional as F
from torch import Tensor


def layer_norm(x_TD: Tensor, weight_D: Tensor | None, bias_D: Tensor | None, eps: float) -> Tensor:
    """Return (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias, in x's dtype."""
    return F.layer_norm(x_TD, x_TD.shape[-1:], weight_D, bias_D, eps)
