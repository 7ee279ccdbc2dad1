"""Plain weights, packed on a CPU for the product that is fastest there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn

from octavo_kernels.gated_activation import gated_activation, plain_activation
from octavo_kernels.linear import activated_linear, gated_linear, linear, linear_add_
from octavo_registry.linear import Activation, PlainActivation
from octavo_registry.sites import Axis, Site

PACKED_FOR_ROWS = 32
"""The row count that oneDNN packs for; the packing serves any count equally well (measured at 1 to
256 rows, within 5 %), unlike packing for 1, which costs up to 40 %."""


class UnquantizedLinear:
    """The method of a layer that nothing quantizes: one parameter ``weight`` [out, in].

    On an x86 CPU ``finish`` repacks it for oneDNN. Against ``F.linear``, which goes to MKL in
    float32, that is 2.4 to 2.9 times as fast in float32 at 1, 32 and 256 rows, and 1.1 to 2 times
    in bfloat16 (2 threads of an AMD Zen 5, out x in: 1280 x 768, 4096 x 768, 32000 x 768).
    On CUDA the products are ``octavo_kernels.linear``'s.
    """

    def __init__(self, *, batch_invariant: bool = False) -> None:
        self.batch_invariant = batch_invariant

    def create(
        self, layer: nn.Module, site: Site, *, dtype: torch.dtype, device: torch.device
    ) -> Mapping[str, tuple[Axis, ...]]:
        """See ``QuantizationMethod``."""
        axes = (Axis("out"), Axis("in"))
        empty_OI = torch.empty(site.shape(*axes), dtype=dtype, device=device)
        layer.weight = nn.Parameter(empty_OI, requires_grad=False)
        return {"weight": axes}

    def finish(self, layer: nn.Module) -> None:
        """Pack the weight on a CPU; it cannot be loaded again afterwards."""
        weight_OI = cast(Tensor, layer.weight)
        if not weight_OI.is_mkldnn and is_packed_on(weight_OI.device, weight_OI.dtype):
            packed = torch.ops.mkldnn._reorder_linear_weight(weight_OI.detach(), PACKED_FOR_ROWS)
            layer.weight = nn.Parameter(packed, requires_grad=False)

    def dequantize(self, layer: nn.Module) -> Tensor:
        """See ``QuantizationMethod``."""
        weight_OI = cast(Tensor, layer.weight)
        return (weight_OI.to_dense() if weight_OI.is_mkldnn else weight_OI).float()

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None) -> Tensor:
        """See ``QuantizationMethod``."""
        weight_OI = cast(Tensor, layer.weight)
        if weight_OI.is_mkldnn:
            product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight_OI, bias, "none", [], "")
            return product
        out_TO = linear(_rows(x), weight_OI, bias, batch_invariant=self.batch_invariant)
        return _like(x, out_TO)

    def add_(self, layer: nn.Module, residual: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
        """See ``FusedProducts``."""
        weight_OI = cast(Tensor, layer.weight)
        if weight_OI.is_mkldnn:
            return residual.add_(self.apply(layer, x, bias))
        linear_add_(
            *(residual if residual.dim() == 2 else residual.view(-1, residual.shape[-1]), _rows(x)),
            *(weight_OI, bias),
            batch_invariant=self.batch_invariant,
        )
        return residual

    def gated(
        self, layer: nn.Module, x: Tensor, bias: Tensor | None, activation: Activation
    ) -> Tensor:
        """See ``FusedProducts``."""
        weight_OI = cast(Tensor, layer.weight)
        if weight_OI.is_mkldnn:
            return gated_activation(self.apply(layer, x, bias), activation)
        return gated_linear(
            x,
            weight_OI,
            activation=activation,
            bias_E=bias,
            batch_invariant=self.batch_invariant,
        )

    def activated(
        self, layer: nn.Module, x: Tensor, bias: Tensor | None, activation: PlainActivation
    ) -> Tensor:
        """See ``FusedProducts``."""
        weight_OI = cast(Tensor, layer.weight)
        if weight_OI.is_mkldnn:
            return plain_activation(self.apply(layer, x, bias), activation)
        out_TO = activated_linear(
            *(_rows(x), weight_OI, bias),
            activation=activation,
            batch_invariant=self.batch_invariant,
        )
        return _like(x, out_TO)


def _rows(x: Tensor) -> Tensor:
    """With two axes: towers' have one for items too."""
    return x if x.dim() == 2 else x.flatten(0, -2)


def _like(x: Tensor, out_TO: Tensor) -> Tensor:
    """With x's leading axes."""
    return out_TO if x.dim() == 2 else out_TO.unflatten(0, x.shape[:-1])


def is_packed_on(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether oneDNN has a fast product for such weights: x86 only, where it was measured.

    What is packed is a copy: a head that was tied to the input embedding no longer shares it.
    """
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if not torch.backends.cpu.get_cpu_capability().startswith("AVX"):
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32
