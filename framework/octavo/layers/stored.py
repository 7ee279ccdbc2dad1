"""What checkpoints fill the parameters of a site with, whatever method made these."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from octavo.errors import ModelError, PluginError
from octavo.layers.loading import Source
from octavo.layers.sharding import entries_of
from octavo_registry.linear import (
    Quantization,
    QuantizationMethod,
    ReordersOutputs,
    WritesBiases,
)
from octavo_registry.model import ModelSpec
from octavo_registry.sites import Axis, Part, Shard, Site

Axes = tuple[Axis, ...]


def merged(parts: Iterable[tuple[str, Shard]]) -> tuple[Part, ...]:
    """Parts of which those that follow one another in one tensor are one."""
    found: list[Part] = []
    for name, shard in parts:
        last = found[-1] if found else None
        if last is not None and last.name == name:
            before = last.outputs
            if before.total == shard.total and before.first + before.size == shard.first:
                size = before.size + shard.size
                found[-1] = Part(name, Shard(total=shard.total, first=before.first, size=size))
                continue
        found.append(Part(name, shard))
    return tuple(found)


def method_at(site: Site, quantization: Quantization | None) -> QuantizationMethod | None:
    """What a quantization says of a linear's weight; None: it is plain."""
    method = None if quantization is None else quantization.method_of(site)
    if method is None or isinstance(method, QuantizationMethod):
        return method
    raise PluginError(
        f"{type(quantization).__name__} gave {type(method).__name__} for {site.name}, which is no "
        "QuantizationMethod: it needs batch_invariant, create, finish, apply, dequantize"
    )


def check_invariance(name: str, method: object, spec: ModelSpec) -> None:
    """Refuse what batch_invariant asks for and the method does not have."""
    if spec.batch_invariant and not getattr(method, "batch_invariant", False):
        raise ModelError(
            f"{name}: the products of {type(method).__name__} may depend on the rows beside a row; "
            "leave batch_invariant out"
        )


def made(
    layer: nn.Module, method: QuantizationMethod, site: Site, spec: ModelSpec
) -> dict[str, Axes]:
    """Let a method make a site's parameters; return their axes, which fit the site."""
    axes = dict(method.create(layer, site, dtype=spec.dtype, device=spec.device))
    for key, its_axes in axes.items():
        check(f"{site.name}.{key}", getattr(layer, key, None), its_axes, site)
    return axes


class StoredWeight(nn.Module):
    """A weight as a method stores it, of which a layer takes the plain one when it is loaded."""

    def __init__(self, method: QuantizationMethod, site: Site, spec: ModelSpec) -> None:
        super().__init__()
        self.site = site
        self._method, self._dtype = method, spec.dtype
        self._axes = made(self, method, site, spec)

    def plain(self) -> Tensor:
        """What it stands for [out, in]; once, when all has come."""
        self._method.finish(self)
        return self._method.dequantize(self).to(self._dtype)

    def sources(self) -> Iterator[Source]:
        """See ``LoadsWeights``."""
        yield from sources(self, self.site, self._axes)
        yield from zero_biases(self._method, self.site.parts)


def check(name: str, parameter: object, axes: Sequence[Axis], site: Site) -> None:
    """Raise for axes that a parameter does not have, and for ranks that would cut entries."""
    if not isinstance(parameter, Tensor) or len(axes) != parameter.dim():
        what = list(parameter.shape) if isinstance(parameter, Tensor) else "no parameter"
        raise PluginError(f"{name} is {what}, and its method says that its axes are {axes!r}")
    for axis, length in zip(axes, parameter.shape, strict=True):
        if not isinstance(axis, Axis):
            raise PluginError(f"{name}: the axis {axis!r} is no Axis; write Axis({axis!r})")
        if axis.along is not None and length != site.length(axis):
            raise PluginError(
                f"{name} has {length} entries along {axis!r}, and {site.length(axis)} are there"
            )
        if axis.along == "in":
            entries_of(site.inputs, axis.unit, f"inputs of {name}")
        for part in site.parts if axis.along == "out" else ():
            entries_of(part.outputs, axis.unit, f"outputs of {part.name} in {name}")
    if len(site.parts) > 1 and not any(axis.along in ("out", "part") for axis in axes):
        raise PluginError(
            f"{name} has no axis of outputs or parts, and would be overwritten by each of "
            f'{", ".join(site.names)}; give it an Axis("part")'
        )


def sources(
    layer: nn.Module,
    site: Site,
    axes: Mapping[str, Axes],
    *,
    transposed: bool = False,
    orders: Mapping[str, Tensor] | None = None,
) -> Iterator[Source]:
    """The checkpoint tensors of all parameters.

    ``transposed`` says that plain weights stand there as [in, out]. ``orders`` have by a part's
    name which of the checkpoint's outputs is each of the layer's.
    """
    for key, its_axes in axes.items():
        parameter = getattr(layer, key)
        for index, part in enumerate(site.parts):
            order_O = None if orders is None else orders.get(part.name)
            yield source(
                f"{part.name}.{key}",
                *(parameter, parameter.data, its_axes, site, index),
                transposed=transposed and key == "weight",
                order_O=order_O,
            )


def stored_sources(
    layer: nn.Module,
    method: QuantizationMethod,
    site: Site,
    axes: Mapping[str, Axes],
    orders: Mapping[str, Tensor],
    *,
    transposed: bool = False,
) -> Iterator[Source]:
    """The checkpoint tensors of a method's parameters; it may put outputs into order itself."""
    if orders and isinstance(method, ReordersOutputs):
        method.reorder(rank_order(site, orders))
        orders = {}
    yield from sources(layer, site, axes, transposed=transposed, orders=orders)


def zero_biases(method: object, parts: Iterable[Part]) -> Iterator[Source]:
    """The biases that a method's tools may have written for linears without any."""
    methods = getattr(method, "methods", [method])
    if any(isinstance(each, WritesBiases) for each in methods):
        totals = {name: outputs.total for name, outputs in parts}
        for name, total in totals.items():
            yield Source(
                name=f"{name}.bias",
                shape=(total,),
                part=(),
                target=torch.empty(0),
                parameter=None,
            )


def source(
    name: str,
    parameter: nn.Parameter,
    target: Tensor,
    axes: Axes,
    site: Site,
    index: int,
    *,
    transposed: bool = False,
    order_O: Tensor | None = None,
) -> Source:
    """What fills one part of a parameter, or of a view of it."""
    shape: list[int] = []
    cut: list[slice | Tensor] = []
    part = site.parts[index].outputs
    for axis, length in zip(axes, tuple(target.shape), strict=True):
        dim = len(shape)
        if axis.along is None:
            shape.append(length)
            cut.append(slice(None))
        elif axis.along == "part":
            target = target.select(dim, index)
        else:
            entries = entries_of(part if axis.along == "out" else site.inputs, axis.unit, name)
            count = max(0, min(entries.size, entries.total - entries.first))
            taken = slice(entries.first, entries.first + count)
            is_out = axis.along == "out"
            if is_out and order_O is not None:
                cut.append(_entries(order_O, axis.unit, name)[taken])
            else:
                cut.append(taken)
            before = [each.outputs.size for each in site.parts[:index]] if is_out else []
            target = target.narrow(dim, sum(-(-size // axis.unit) for size in before), count)
            shape.append(entries.total)
    if transposed and len(shape) == 2:
        shape, cut, target = shape[::-1], cut[::-1], target.mT
    return Source(
        name=name, shape=tuple(shape), part=tuple(cut), target=target, parameter=parameter
    )


def rank_order(site: Site, orders: Mapping[str, Tensor]) -> Tensor:
    """Which of this rank's stored outputs is each of the layer's, by the orders of some parts."""
    pieces, first = [], 0
    for name, shard in site.parts:
        taken = slice(shard.first, shard.first + shard.size)
        order_O = orders.get(name, torch.arange(shard.total, device="cpu"))[taken]
        pieces.append(order_O - shard.first + first)
        first += shard.size
    return torch.cat(pieces)


def _entries(order_O: Tensor, unit: int, name: str) -> Tensor:
    """The order of entries that hold several outputs each: these must stay as they are."""
    if unit == 1:
        return order_O
    firsts_E = order_O[::unit]
    within_O = torch.arange(len(order_O), device="cpu") % unit
    expected_O = firsts_E.repeat_interleave(unit)[: len(order_O)] + within_O
    if bool((firsts_E % unit).any()) or not torch.equal(order_O, expected_O):
        raise ModelError(
            f"{name} holds {unit} outputs an entry, and the order that the model needs them in "
            "takes these apart; its method would have to reorder them"
        )
    return firsts_E // unit
