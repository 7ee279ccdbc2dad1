"""The seam where a quantization replaces a linear layer's weights and its product."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


@runtime_checkable
class QuantizationMethod(Protocol):
    """Makes a linear's parameters, checks and finishes them after loading, and multiplies."""

    def create(
        self,
        layer: nn.Module,
        *,
        name: str,
        in_features: int,
        out_features: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Register this layer's parameters on ``layer``; called once when it is built."""
        ...

    def finish(self, layer: nn.Module) -> None:
        """Repack after all of the layer's tensors are loaded."""
        ...

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None) -> Tensor:
        """Return x @ weight.T + bias."""
        ...
