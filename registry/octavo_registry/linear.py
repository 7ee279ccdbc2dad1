"""The seam where a quantization replaces a linear layer's weights and its product."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

Activation = Literal["silu", "gelu", "gelu_tanh"]
PlainActivation = Literal["quick_gelu", "gelu", "gelu_tanh"]
"""Of a product without gates."""
Axis = Literal["in", "out"] | None
"""What one axis of a parameter runs along: the linear's inputs, its outputs, or neither."""


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
    ) -> Mapping[str, tuple[Axis, ...]]:
        """Register this layer's parameters on ``layer``; called once when it is built.

        Returns the axes of each parameter that checkpoints fill, {"weight": ("out", "in")} for a
        plain one: the layer cuts it along them for fused parts and tensor parallel ranks. Entries
        that pack or group several inputs or outputs make an axis shorter in proportion.
        """
        ...

    def finish(self, layer: nn.Module) -> None:
        """Repack after all of the layer's tensors are loaded."""
        ...

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None) -> Tensor:
        """Return x @ weight.T + bias."""
        ...


@runtime_checkable
class FusedProducts(Protocol):
    """A ``QuantizationMethod`` that does what follows a product in the product's own kernel.

    Layers use these where a method has them, and else separate operations after ``apply``.
    """

    def add_(self, layer: nn.Module, residual: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
        """Add x @ weight.T + bias to ``residual`` in place, and return it."""
        ...

    def gated(
        self, layer: nn.Module, x: Tensor, bias: Tensor | None, activation: Activation
    ) -> Tensor:
        """Return activation(gate) * up, the product's first and second half of outputs."""
        ...

    def activated(
        self, layer: nn.Module, x: Tensor, bias: Tensor | None, activation: PlainActivation
    ) -> Tensor:
        """Return activation(x @ weight.T + bias)."""
        ...


class EmbeddingAdapters(Protocol):
    """What adds adapters to the input embedding."""

    def add_(self, x_TD: Tensor, ids_T: Tensor, absent_T: Tensor | None) -> Tensor:
        """Add the adapters' part to tokens' embeddings in place, and return them.

        ``ids_T`` are rows of this rank's part of the embedding; ``absent_T`` says which tokens are
        another rank's.
        """
        ...


class ExpertAdapters(Protocol):
    """What adds adapters to the experts of one layer."""

    def sum_of(
        self, layer: nn.Module, x_TD: Tensor, ids_TK: Tensor, weights_TK: Tensor
    ) -> Tensor | None:
        """Return the weighted sum over each token's chosen experts, adapters' part included.

        None: no token of the step has an adapter of experts.
        """
        ...


class LatentAdapters(Protocol):
    """What adds adapters to the projection that latent attention multiplies into others."""

    def add_to_queries_(self, absorbed_HTL: Tensor, q_HTN: Tensor) -> Tensor:
        """Add the adapters' part to queries times the keys' projection, in place; return them."""
        ...

    def add_to_values_(self, values_HTV: Tensor, out_HTL: Tensor) -> Tensor:
        """Add it to results times the values' projection, in place, and return them."""
        ...


@runtime_checkable
class LayerAdapters(Protocol):
    """What adds adapters to layers, whatever method multiplies there."""

    def around(self, method: QuantizationMethod) -> QuantizationMethod:
        """Return the method of one linear: ``method``'s products, and the adapters' part."""
        ...

    def of_head(self, layer: nn.Module, method: QuantizationMethod) -> QuantizationMethod:
        """Return the same for the output embedding, which has its weight already."""
        ...

    def of_embedding(self, layer: nn.Module) -> EmbeddingAdapters:
        """Return what adds to the input embedding."""
        ...

    def of_experts(self, layer: nn.Module) -> ExpertAdapters | None:
        """Return what adds to a layer of experts; None: nothing may."""
        ...

    def of_latent(self, layer: nn.Module) -> LatentAdapters:
        """Return what adds to the projection of compressed keys of a layer's latent attention."""
        ...

    def reorder(self, name: str, order_O: Tensor) -> None:
        """Say which of the checkpoint's outputs of a linear is each of the layer's; on the host."""
        ...
