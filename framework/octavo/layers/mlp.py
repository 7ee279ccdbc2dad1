"""Feed-forward layers. Axis suffixes: T tokens, D hidden."""

from __future__ import annotations

from torch import Tensor, nn

from octavo.errors import ModelError
from octavo.layers.linear import ColumnParallelLinear, RowParallelLinear
from octavo_kernels.silu_and_mul import silu_and_mul
from octavo_registry.model import ModelSpec

GATED_ACTIVATIONS = {"silu": silu_and_mul, "swish": silu_and_mul}
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
        self._activate = GATED_ACTIVATIONS[activation]
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
        out_TD: Tensor = self.down_proj(self._activate(self.gate_up_proj(x_TD)))
        return out_TD
