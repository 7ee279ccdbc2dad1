"""Feed-forward layers. Axis suffixes: T tokens, D hidden."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import torch.nn.functional as F
from torch import Tensor, nn

from octavo.errors import ModelError
from octavo.layers.linear import ColumnParallelLinear, RowParallelLinear
from octavo_registry.linear import Activation
from octavo_registry.model import ModelSpec

GATED_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
"""Activations of gated MLPs by their names in config.json's ``hidden_act``."""

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu_,
    "silu": F.silu,
    "swish": F.silu,
    "gelu": F.gelu,
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
}
"""Activations of MLPs without a gate by name; they may overwrite their argument."""

T = TypeVar("T")


def activation_of(name: str, owner: str) -> Callable[[Tensor], Tensor]:
    """The ``activation_function`` of that name; ``owner`` is the layer, for the error."""
    return _known(name, ACTIVATIONS, f"activation_function={name!r} of {owner}")


class GatedMLP(nn.Module):
    """down(activation(gate(x)) * up(x)), with gate and up as one product.

    In the checkpoint these are two linears, or with ``stored_fused`` one named gate_up_proj.
    """

    def __init__(
        self,
        name: str,
        hidden_size: int,
        intermediate_size: int,
        *,
        activation: str,
        bias: bool,
        spec: ModelSpec,
        stored_fused: bool = False,
    ) -> None:
        super().__init__()
        what = f"hidden_act={activation!r} of {name}"
        self._activation = _known(activation, GATED_ACTIVATIONS, what)
        self.gate_up_proj = ColumnParallelLinear(
            f"{name}.gate_up_proj",
            hidden_size,
            {"gate_proj": intermediate_size, "up_proj": intermediate_size},
            bias=bias,
            spec=spec,
            stored_fused=stored_fused,
        )
        self.down_proj = RowParallelLinear(
            f"{name}.down_proj", intermediate_size, hidden_size, bias=bias, spec=spec
        )

    def forward(self, x_TD: Tensor) -> Tensor:
        """The layer's result [T, D], without the residual."""
        out_TD: Tensor = self.down_proj(self.gate_up_proj.gated(x_TD, self._activation))
        return out_TD

    def add_to(self, residual_TD: Tensor, x_TD: Tensor) -> Tensor:
        """Add the layer's result for x to the residual stream in place, and return it."""
        return self.down_proj.add_to(residual_TD, self.gate_up_proj.gated(x_TD, self._activation))


def _known(activation: str, known: Mapping[str, T], what: str) -> T:
    if activation not in known:
        raise ModelError(f"{what} is not known; known: {', '.join(known)}")
    return known[activation]
