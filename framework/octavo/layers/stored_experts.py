"""What checkpoints fill the parameters of a layer of experts with, whatever method made these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from torch import Tensor, nn

from octavo.errors import ModelError, PluginError
from octavo.layers.loading import Source
from octavo.layers.stored import Axes, check, source
from octavo.layers.unquantized_experts import UnquantizedExperts
from octavo_registry.linear import ExpertsMethod, ExpertsParameter, Quantization
from octavo_registry.model import ModelSpec
from octavo_registry.sites import Axis, ExpertsSite, Part, Shard, Site

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertTensors:
    """A checkpoint with tensors of its own for each expert, by its number."""

    gate: str = "experts.{}.gate_proj"
    up: str = "experts.{}.up_proj"
    down: str = "experts.{}.down_proj"


@dataclass(frozen=True, slots=True, kw_only=True)
class StackedTensors:
    """A checkpoint with one tensor for all experts; biases are named with ``_bias`` behind it."""

    gate_up: str = "experts.gate_up_proj"
    down: str = "experts.down_proj"
    transposed: bool = False
    """Inputs stand before outputs, where weights are plain."""
    interleaved: bool = False
    """Gates and ups take turns, instead of all gates first."""


def experts_site(
    name: str,
    checkpoint: ExpertTensors | StackedTensors,
    num_experts: int,
    hidden: Shard,
    features: Shard,
) -> ExpertsSite:
    """The site of a layer of experts with so many intermediate features."""
    names: tuple[str, ...]
    if isinstance(checkpoint, StackedTensors):
        gate = up = f"{name}.{checkpoint.gate_up}"
        names = gate, f"{name}.{checkpoint.down}"
    else:
        gate, up = f"{name}.{checkpoint.gate}", f"{name}.{checkpoint.up}"
        children = checkpoint.gate, checkpoint.up, checkpoint.down
        names = tuple(f"{name}.{c.format(i)}" for i in range(num_experts) for c in children)
    halves = Part(gate, features), Part(up, features)
    last = Part(f"{name}.{checkpoint.down}", hidden)
    return ExpertsSite(
        name=name,
        num_experts=num_experts,
        gate_up=Site(name=f"{name}.gate_up", kind="experts", inputs=hidden, parts=halves),
        down=Site(name=f"{name}.down", kind="experts", inputs=features, parts=(last,)),
        names=names,
    )


def experts_method_at(site: ExpertsSite, quantization: Quantization | None) -> ExpertsMethod:
    """What a quantization says of a layer of experts, or the method of plain ones."""
    method = None if quantization is None else quantization.method_of(site)
    if method is None:
        return UnquantizedExperts()
    if isinstance(method, ExpertsMethod):
        return method
    raise PluginError(
        f"{type(quantization).__name__} gave {type(method).__name__} for {site.name}, which is no "
        "ExpertsMethod: it needs batch_invariant, unit, create, finish, dequantize, sum_of"
    )


def made_experts(
    layer: nn.Module, method: ExpertsMethod, site: ExpertsSite, spec: ModelSpec
) -> dict[str, ExpertsParameter]:
    """Let a method make a site's parameters; return what fills them, which fits the site.

    Features of this rank that no checkpoint has are zero.
    """
    found = dict(method.create(layer, site, dtype=spec.dtype, device=spec.device))
    features = site.down.inputs
    for name, filled in found.items():
        if not isinstance(filled, ExpertsParameter):
            raise PluginError(f"{site.name}.{name} is filled by {filled!r}, no ExpertsParameter")
        stack = site.gate_up if filled.stack == "gate_up" else site.down
        parameter = getattr(layer, name, None)
        if not isinstance(parameter, Tensor) or parameter.shape[:1] != (site.num_experts,):
            what = list(parameter.shape) if isinstance(parameter, Tensor) else "no parameter"
            experts = f"an axis of {site.num_experts} experts"
            raise PluginError(f"{site.name}.{name} is {what}, and needs {experts} first")
        check(f"{site.name}.{name}", parameter.data[0], filled.axes, stack)
        if features.first + features.size > features.total:
            parameter.data.zero_()
    return found


def expert_sources(
    layer: nn.Module,
    checkpoint: ExpertTensors | StackedTensors,
    site: ExpertsSite,
    parameters: Mapping[str, ExpertsParameter],
) -> Iterator[Source]:
    """The checkpoint tensors of all parameters."""
    for key, filled in parameters.items():
        stack = site.gate_up if filled.stack == "gate_up" else site.down
        parameter: nn.Parameter = getattr(layer, key)
        if isinstance(checkpoint, StackedTensors):
            for half in range(len(stack.parts)):
                yield _stacked(checkpoint, parameter, filled, stack, half)
            continue
        for expert in range(site.num_experts):
            for index, part in enumerate(stack.parts):
                name = f"{part.name.format(expert)}.{filled.key}"
                yield source(name, parameter, parameter.data[expert], filled.axes, stack, index)


def expert_parts(checkpoint: ExpertTensors | StackedTensors, site: ExpertsSite) -> Iterator[Part]:
    """The outputs of each expert's linears, where the checkpoint has these one by one."""
    if isinstance(checkpoint, ExpertTensors):
        for expert in range(site.num_experts):
            for name, outputs in (*site.gate_up.parts, *site.down.parts):
                yield Part(name.format(expert), outputs)


def _stacked(
    checkpoint: StackedTensors,
    parameter: nn.Parameter,
    filled: ExpertsParameter,
    stack: Site,
    half: int,
) -> Source:
    """What fills the gates or ups of all experts, or their down projections."""
    suffix = "" if filled.key == "weight" else f"_{filled.key}"
    name = f"{stack.parts[half].name}{suffix}"
    axes: Axes = (Axis(), *filled.axes)
    found = source(name, parameter, parameter.data, axes, stack, half)
    shape, cut = list(found.shape), list(found.part)
    if len(stack.parts) == 2:
        stored = [axis for axis in axes if axis.along != "part"]
        for dim, axis in enumerate(stored):
            if axis.along == "out":
                cut[dim] = _half(name, checkpoint, axis, stack, cut[dim], half)
                shape[dim] *= 2
    target = found.target
    if checkpoint.transposed and filled.key == "weight":
        shape, cut, target = _turned(shape), _turned(cut), target.mT
    return replace(found, shape=tuple(shape), part=tuple(cut), target=target)


def _half(
    name: str,
    checkpoint: StackedTensors,
    axis: Axis,
    stack: Site,
    taken: slice | Tensor,
    half: int,
) -> slice:
    """Where entries of gates, or of ups, stand in a tensor that has both."""
    assert isinstance(taken, slice)
    total = stack.parts[half].outputs.total
    if total % axis.unit or (checkpoint.interleaved and axis.unit > 1):
        raise ModelError(
            f"{name} holds {axis.unit} outputs an entry, and of {total} gates and as many ups "
            "some would share one"
        )
    if checkpoint.interleaved:
        return slice(2 * taken.start + half, 2 * taken.stop, 2)
    first = half * (total // axis.unit)
    return slice(first + taken.start, first + taken.stop)


def _turned(dims: list[T]) -> list[T]:
    return [*dims[:-2], dims[-1], dims[-2]]
