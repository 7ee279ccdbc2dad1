"""The seam where adapters add to what a model's layers compute."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor, nn

    from octavo_registry.linear import QuantizationMethod


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
