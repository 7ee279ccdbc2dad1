"""What the gated activation is."""

import torch.nn.functional as F
from torch import Tensor


def silu_and_mul(gate_up_TE: Tensor) -> Tensor:
    """Return silu(first half) * second half."""
    gate_TI, up_TI = gate_up_TE.chunk(2, dim=-1)
    return F.silu(gate_TI).mul_(up_TI)
