"""What the gated activations are; the activation is rounded to x's dtype before the product."""

import torch
import torch.nn.functional as F
from torch import Tensor


def gated_activation(gate_up_TE: Tensor, activation: str) -> Tensor:
    """Return activation(first half) * second half."""
    gate_TI, up_TI = gate_up_TE.chunk(2, dim=-1)
    if activation == "silu":
        return F.silu(gate_TI).mul_(up_TI)
    return F.gelu(gate_TI, approximate="tanh" if activation == "gelu_tanh" else "none").mul_(up_TI)


def quick_gelu(x: Tensor) -> Tensor:
    """Return x * sigmoid(1.702 x)."""
    return x * torch.sigmoid(1.702 * x)
