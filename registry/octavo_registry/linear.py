"""The seam where a quantization replaces weights and the products with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, runtime_checkable

from octavo_registry.sites import Axis, ExpertsSite, Site

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

Activation = Literal["silu", "gelu", "gelu_tanh"]
PlainActivation = Literal["quick_gelu", "gelu", "gelu_tanh"]
"""What may follow a product without gates."""


@runtime_checkable
class Quantization(Protocol):
    """How one model's weights are stored; made as ``Quantization(config, model_config)``.

    ``config`` is the checkpoint's ``quantization_config``, empty where plain weights are to be
    quantized while they load; ``model_config`` is config.json. What they ask for and this cannot do
    is an error at once, an unknown key too.
    """

    def method_of(self, site: Site | ExpertsSite) -> QuantizationMethod | ExpertsMethod | None:
        """Return what makes and multiplies the weights of a site; None: they are plain.

        Asked once for each site when the model is built. That of an ``ExpertsSite`` is an
        ``ExpertsMethod``, any other a ``QuantizationMethod``. The weights of a "latent" site are
        needed plain: after loading ``dequantize`` makes them.
        """
        ...


@runtime_checkable
class QuantizationMethod(Protocol):
    """Makes the parameters of a weight, checks and finishes them after loading, and multiplies."""

    batch_invariant: bool
    """Whether a row's product has the same bits whatever rows stand beside it."""

    def create(
        self, layer: nn.Module, site: Site, *, dtype: torch.dtype, device: torch.device
    ) -> Mapping[str, tuple[Axis, ...]]:
        """Register the site's parameters on ``layer``; called once when it is built.

        Returns the axes of each parameter that checkpoints fill, by which it is cut for parts and
        tensor parallel ranks: {"weight": (Axis("out"), Axis("in"))} for a plain one. ``site.shape``
        gives the shape. A bias is the layer's own. ``dtype`` is that of inputs and results.
        """
        ...

    def finish(self, layer: nn.Module) -> None:
        """Repack when the last of the layer's tensors has come; what is not needed is let go.

        Also called on the "meta" device, where only shapes count: what it leaves there is what
        the memory budget has for the layer.
        """
        ...

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None) -> Tensor:
        """Return x @ weight.T + bias."""
        ...

    def dequantize(self, layer: nn.Module) -> Tensor:
        """Return what the finished layer's weight stands for, float32 [out, in].

        It defines what ``apply`` must come near to.
        """
        ...


@runtime_checkable
class ReordersOutputs(Protocol):
    """A ``QuantizationMethod`` that can put outputs into another order, however they are packed.

    That of a method without it must not be changed within an entry: the layer refuses to.
    """

    def reorder(self, order_O: Tensor) -> None:
        """Say before loading which of the stored outputs of this rank is each of the layer's."""
        ...


@runtime_checkable
class WritesBiases(Protocol):
    """A method, of experts too, whose tools write biases of zeros for linears without any."""

    writes_biases: bool
    """True; such tensors are passed over where they are zero."""


class ExpertsParameter(NamedTuple):
    """What checkpoints fill a parameter of a layer of experts with; its first axis is experts.

    From one tensor an expert and projection, "experts.3.gate_proj.KEY", or from one for all,
    "experts.gate_up_proj_KEY"; there the axes are in the order of that tensor. Only plain weights,
    whose key is "weight", stand as the model says, and lack the key in names of stacks.
    """

    stack: Literal["gate_up", "down"]
    key: str
    axes: tuple[Axis, ...]


@runtime_checkable
class ExpertsMethod(Protocol):
    """Quantizes all experts of a layer, which are multiplied together."""

    batch_invariant: bool
    unit: int
    """So many of an expert's features stay together: a rank's are padded with zeros to that."""

    def create(
        self, layer: nn.Module, site: ExpertsSite, *, dtype: torch.dtype, device: torch.device
    ) -> Mapping[str, ExpertsParameter]:
        """Register the site's parameters on ``layer``, and say what fills each by its name.

        The layer is a ``MoE``, which has the biases.
        """
        ...

    def finish(self, layer: nn.Module) -> None:
        """See ``QuantizationMethod``."""
        ...

    def dequantize(self, layer: nn.Module) -> tuple[Tensor, Tensor]:
        """Return gates and ups [experts, 2 features, hidden], and [experts, hidden, features].

        Both in float32, gates first.
        """
        ...

    def sum_of(
        self,
        layer: nn.Module,
        x_TD: Tensor,
        ids_TK: Tensor,
        weights_TK: Tensor,
        residual_TD: Tensor | None,
    ) -> Tensor:
        """Return the sum over a token's experts of weight * down(activation(gate(x)) * up(x)).

        With a residual it is added in place, and the residual returned.
        """
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
