"""What the products are: sums in float32, rounded once."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from octavo_kernels.gated_activation.reference import quick_gelu

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}
"""Activations of gates."""
PLAIN_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "quick_gelu": quick_gelu,
    "gelu": ACTIVATIONS["gelu"],
    "gelu_tanh": ACTIVATIONS["gelu_tanh"],
}
"""Activations of products without gates."""


def linear(x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
    """Return x @ weight.T + bias."""
    return _product(x_TI, weight_OI, bias_O).to(x_TI.dtype)


def linear_add_(
    residual_TO: Tensor, x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None
) -> Tensor:
    """Add x @ weight.T + bias to the residual."""
    return residual_TO.copy_(residual_TO.float() + _product(x_TI, weight_OI, bias_O))


def activated_linear(
    x_TI: Tensor, weight_OI: Tensor, activation: str, bias_O: Tensor | None
) -> Tensor:
    """Return activation(x @ weight.T + bias)."""
    return PLAIN_ACTIVATIONS[activation](_product(x_TI, weight_OI, bias_O)).to(x_TI.dtype)


def gated_linear(
    x_TI: Tensor, gate_up_EI: Tensor, activation: str, bias_E: Tensor | None
) -> Tensor:
    """Return activation(x @ gate.T) * (x @ up.T)."""
    gate_TO, up_TO = _product(x_TI, gate_up_EI, bias_E).chunk(2, dim=-1)
    return (ACTIVATIONS[activation](gate_TO) * up_TO).to(x_TI.dtype)


def _product(x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
    return F.linear(x_TI.float(), weight_OI.float(), None if bias_O is None else bias_O.float())
