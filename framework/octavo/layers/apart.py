"""A fused product whose parts are stored in different forms, and multiplied one by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from octavo.layers.loading import Source
from octavo.layers.stored import Axes, check, stored_sources
from octavo.layers.unquantized import UnquantizedLinear
from octavo_registry.linear import QuantizationMethod
from octavo_registry.sites import Axis, Site


class Apart:
    """The method of a linear whose parts have a method each; None: that part is plain."""

    def __init__(self, methods: Sequence[QuantizationMethod | None]) -> None:
        self.methods = [method or UnquantizedLinear(batch_invariant=True) for method in methods]
        self.batch_invariant = all(method.batch_invariant for method in self.methods)
        self._sites: list[Site] = []
        self._axes: list[dict[str, Axes]] = []

    def create(
        self, layer: nn.Module, site: Site, *, dtype: torch.dtype, device: torch.device
    ) -> Mapping[str, tuple[Axis, ...]]:
        """See ``QuantizationMethod``; the parts' parameters stand in modules of their own."""
        for index, (method, part) in enumerate(zip(self.methods, site.parts, strict=True)):
            own = replace(site, name=part.name, parts=(part,))
            module = nn.Module()
            axes = dict(method.create(module, own, dtype=dtype, device=device))
            for key, its_axes in axes.items():
                check(f"{part.name}.{key}", getattr(module, key, None), its_axes, own)
            layer.add_module(f"part_{index}", module)
            self._sites.append(own)
            self._axes.append(axes)
        return {}

    def sources(self, layer: nn.Module, orders: Mapping[str, Tensor]) -> Iterator[Source]:
        """The checkpoint tensors of all parts."""
        parts = zip(self.methods, self._sites, self._axes, strict=True)
        for index, (method, site, axes) in enumerate(parts):
            own = {name: order_O for name, order_O in orders.items() if name in site.names}
            yield from stored_sources(_module(layer, index), method, site, axes, own)

    def finish(self, layer: nn.Module) -> None:
        """See ``QuantizationMethod``."""
        for index, method in enumerate(self.methods):
            method.finish(_module(layer, index))

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None) -> Tensor:
        """See ``QuantizationMethod``."""
        pieces, first = [], 0
        for index, (method, site) in enumerate(zip(self.methods, self._sites, strict=True)):
            last = first + site.out_features
            part_bias = None if bias is None else bias[first:last]
            pieces.append(method.apply(_module(layer, index), x, part_bias))
            first = last
        return torch.cat(pieces, dim=-1)

    def dequantize(self, layer: nn.Module) -> Tensor:
        """See ``QuantizationMethod``."""
        parts = enumerate(self.methods)
        return torch.cat([method.dequantize(_module(layer, i)) for i, method in parts])


def _module(layer: nn.Module, index: int) -> nn.Module:
    return layer.get_submodule(f"part_{index}")
