"""Feed-forward layers. Axis suffixes: T tokens, D hidden."""

from __future__ import annotations

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
"""By their names in config.json's ``hidden_act``."""


class GatedMLP(nn.Module):
    """down(activation(gate(x)) * up(x)), with gate and up as one product."""

    def __init__(
        self,
        name: str,
        hidden_size: int,
        intermediate_size: int,
        *,
        activation: str,
        bias: bool,
        spec: ModelSpec,
    ) -> None:
        super().__init__()
        if activation not in GATED_ACTIVATIONS:
            known = ", ".join(GATED_ACTIVATIONS)
            raise ModelError(f"hidden_act={activation!r} of {name} is not known; known: {known}")
        self._activation = GATED_ACTIVATIONS[activation]
        self.gate_up_proj = ColumnParallelLinear(
            f"{name}.gate_up_proj",
            hidden_size,
            {"gate_proj": intermediate_size, "up_proj": intermediate_size},
            bias=bias,
            spec=spec,
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
