"""Formats of stored weights, and methods that multiply by what these stand for.

A format says which tensors a checkpoint has of a weight, and which codes and scales they are. The
methods here widen codes stripe by stripe, on a CPU: slow, and what kernels are measured by.

Axis suffixes: O outputs, I inputs, G groups of inputs, X experts, T tokens, K chosen experts of a
token, D hidden, E gates and ups.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from octavo.errors import ModelError
from octavo_kernels.moe import experts
from octavo_registry.linear import ExpertsParameter
from octavo_registry.sites import Axis, ExpertsSite, Site

if TYPE_CHECKING:
    from octavo.layers.moe import MoE

STRIPE: Final = 1024
"""So many outputs are widened at a time."""


class StoredTensor(NamedTuple):
    """One tensor that checkpoints have of a weight."""

    axes: tuple[Axis, ...]
    dtype: torch.dtype
    lengths: tuple[int, ...] = ()
    """The lengths of axes that run along neither features nor parts."""

    def empty(self, site: Site, device: torch.device, *before: int) -> nn.Parameter:
        """A parameter for it, with further axes in front; what no tensor fills is zero."""
        lengths = iter(self.lengths)
        shape = [next(lengths) if a.along is None else site.length(a) for a in self.axes]
        zeros = torch.zeros((*before, *shape), dtype=self.dtype, device=device)
        return nn.Parameter(zeros, requires_grad=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class CodedWeight:
    """A weight as codes of at most 8 bits: (code - zero) * scale, in float32."""

    codes_OI: Tensor
    scale_OG: Tensor
    """Float32."""
    group_size: int
    """Inputs that share a scale, one after the other."""
    zero_OG: Tensor | None = None
    group_I: Tensor | None = None
    """Each input's group, where these are not one after the other."""

    def widened(self, rows: slice) -> Tensor:
        """The weights of some outputs, float32."""
        weight_OI = self.codes_OI[rows].float()
        if self.zero_OG is not None:
            weight_OI -= self._by_input(self.zero_OG[rows].float())
        return weight_OI.mul_(self._by_input(self.scale_OG[rows]))

    def reordered(self, order_O: Tensor) -> CodedWeight:
        """This weight with its outputs in another order."""
        order_O = order_O.to(self.codes_OI.device)
        return replace(
            self,
            codes_OI=self.codes_OI[order_O],
            scale_OG=self.scale_OG[order_O],
            zero_OG=None if self.zero_OG is None else self.zero_OG[order_O],
        )

    def _by_input(self, each_OG: Tensor) -> Tensor:
        if self.group_I is not None:
            return each_OG.index_select(1, self.group_I)
        num_inputs = self.codes_OI.shape[1]
        return each_OG.repeat_interleave(self.group_size, dim=1)[:, :num_inputs]


class WeightFormat(Protocol):
    """How checkpoints store a weight [outputs, inputs]."""

    @property
    def unit(self) -> int:
        """So many of an expert's features stay together."""
        ...

    def tensors(self, site: Site) -> Mapping[str, StoredTensor]:
        """Return what checkpoints have, by the last part of the tensors' names."""
        ...

    def coded(self, stored: Mapping[str, Tensor], site: Site) -> CodedWeight:
        """Return what these tensors say of the weight of a site."""
        ...


def by_feature(tensor: Tensor, axes: tuple[Axis, ...], site: Site) -> Tensor:
    """Repeat entries that stand for several outputs, or for a part, for each of these outputs."""
    sizes = [part.outputs.size for part in site.parts]
    for dim, axis in enumerate(axes):
        if axis.along == "part":
            repeats = torch.tensor(sizes, device=tensor.device)
            tensor = tensor.repeat_interleave(repeats, dim, output_size=site.out_features)
        elif axis.along == "out" and axis.unit > 1:
            wide = tensor.repeat_interleave(axis.unit, dim)
            tensor = only_features(wide, dim, axis.unit, site)
    return tensor


def only_features(tensor: Tensor, dim: int, unit: int, site: Site) -> Tensor:
    """Leave out what fills up the last word of each part, of outputs that were unpacked."""
    sizes = [part.outputs.size for part in site.parts]
    if not any(size % unit for size in sizes):
        return tensor
    pieces = tensor.split([-(-size // unit) * unit for size in sizes], dim)
    return torch.cat([p.narrow(dim, 0, size) for p, size in zip(pieces, sizes, strict=True)], dim)


def unpacked(words: Tensor, bits: int, dim: int, order: tuple[int, ...] | None = None) -> Tensor:
    """Numbers of 4 or 8 bits in words of 32, lowest bits first, along an axis; uint8.

    ``order`` says which number of a word is which: its i-th bits are entry ``order[i]``.
    """
    shifts = torch.arange(0, 32, bits, dtype=torch.int32, device=words.device)
    dim %= words.dim()
    numbers = (words.unsqueeze(dim + 1) >> shifts.view(-1, *[1] * (words.dim() - dim - 1))) & (
        (1 << bits) - 1
    )
    if order is not None:
        places = torch.tensor(order, device=words.device).argsort()
        numbers = numbers.index_select(dim + 1, places)
    return numbers.flatten(dim, dim + 1).to(torch.uint8)


def check_device(name: str, device: torch.device) -> None:
    """Refuse devices for which there is no product yet, instead of a slow one."""
    if device.type not in ("cpu", "meta"):
        raise ModelError(
            f"{name}: quantized weights run on the CPU only so far; pass device='cpu', or load "
            "16-bit weights"
        )


class FormatLinear:
    """Multiplies by the weights that a format's tensors stand for."""

    batch_invariant = False

    def __init__(self, form: WeightFormat) -> None:
        self._form = form
        self._site: Site | None = None
        self._order_O: Tensor | None = None
        self._group_size = 0

    def reorder(self, order_O: Tensor) -> None:
        """See ``ReordersOutputs``."""
        self._order_O = order_O

    def create(
        self, layer: nn.Module, site: Site, *, dtype: torch.dtype, device: torch.device
    ) -> Mapping[str, tuple[Axis, ...]]:
        """See ``QuantizationMethod``."""
        check_device(site.name, device)
        self._site = site
        tensors = self._form.tensors(site)
        for key, stored in tensors.items():
            layer.register_parameter(key, stored.empty(site, device))
        return {key: stored.axes for key, stored in tensors.items()}

    def finish(self, layer: nn.Module) -> None:
        """Keep codes and scales, and let go of what was loaded."""
        if self._site is None:
            return
        keys = self._form.tensors(self._site)
        coded = self._form.coded({key: getattr(layer, key).data for key in keys}, self._site)
        for key in keys:
            delattr(layer, key)
        _keep(layer, coded if self._order_O is None else coded.reordered(self._order_O))
        self._group_size, self._site = coded.group_size, None

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None) -> Tensor:
        """See ``QuantizationMethod``."""
        coded = _kept(layer, self._group_size)
        num_outputs = len(coded.codes_OI)
        out = x.new_empty(*x.shape[:-1], num_outputs)
        for first in range(0, num_outputs, STRIPE):
            rows = slice(first, min(first + STRIPE, num_outputs))
            stripe_bias = None if bias is None else bias[rows]
            out[..., rows] = functional.linear(x, coded.widened(rows).to(x.dtype), stripe_bias)
        return out

    def dequantize(self, layer: nn.Module) -> Tensor:
        """See ``QuantizationMethod``."""
        return _kept(layer, self._group_size).widened(slice(None))


class FormatExperts:
    """Multiplies experts so: those that some token chose are widened, one after the other."""

    batch_invariant = True

    def __init__(self, form: WeightFormat) -> None:
        self._form = form
        self.unit = form.unit
        self._site: ExpertsSite | None = None
        self._group_sizes: dict[str, int] = {}

    def create(
        self, layer: nn.Module, site: ExpertsSite, *, dtype: torch.dtype, device: torch.device
    ) -> Mapping[str, ExpertsParameter]:
        """See ``ExpertsMethod``."""
        check_device(site.name, device)
        self._site = site
        filled = {}
        for stack, its in _stacks(site).items():
            for key, stored in self._form.tensors(its).items():
                name = f"{stack}_{key}"
                layer.register_parameter(name, stored.empty(its, device, site.num_experts))
                filled[name] = ExpertsParameter(cast(Any, stack), key, stored.axes)
        return filled

    def finish(self, layer: nn.Module) -> None:
        """See ``FormatLinear``."""
        if self._site is None:
            return
        for stack, its in _stacks(self._site).items():
            keys = self._form.tensors(its)
            all_coded = [
                self._form.coded({k: getattr(layer, f"{stack}_{k}").data[x] for k in keys}, its)
                for x in range(self._site.num_experts)
            ]
            for key in keys:
                delattr(layer, f"{stack}_{key}")
            for name in KEPT:
                tensors = [getattr(coded, name) for coded in all_coded]
                kept = None if tensors[0] is None else nn.Parameter(torch.stack(tensors), False)
                layer.register_parameter(f"{stack}_{name}", kept)
            self._group_sizes[stack] = all_coded[0].group_size
        self._site = None

    def dequantize(self, layer: nn.Module) -> tuple[Tensor, Tensor]:
        """See ``ExpertsMethod``."""
        num_experts = len(cast(Tensor, layer.down_codes_OI))
        gate_up, down = (
            torch.stack([self._widened(layer, stack, x) for x in range(num_experts)])
            for stack in ("gate_up", "down")
        )
        return gate_up, down

    def sum_of(
        self,
        layer: nn.Module,
        x_TD: Tensor,
        ids_TK: Tensor,
        weights_TK: Tensor,
        residual_TD: Tensor | None,
    ) -> Tensor:
        """See ``ExpertsMethod``."""
        moe = cast("MoE", layer)
        x_float_TD = x_TD.float()
        sum_TD = torch.zeros_like(x_float_TD)
        for expert in ids_TK.unique().tolist():
            experts(
                x_float_TD,
                self._widened(layer, "gate_up", expert)[None],
                self._widened(layer, "down", expert)[None],
                (ids_TK != expert).int().neg_(),  # 0 for this one, -1 for nothing
                weights_TK,
                activation=moe.activation,
                bias_XE=_one(moe.gate_up_bias, expert),
                bias_XD=_one(moe.down_bias if moe.adds_bias else None, expert),
                residual_TD=sum_TD,
            )
        if residual_TD is None:
            return sum_TD.to(x_TD.dtype)
        return residual_TD.copy_(residual_TD.float() + sum_TD)

    def _widened(self, layer: nn.Module, stack: str, expert: int) -> Tensor:
        tensors = {name: getattr(layer, f"{stack}_{name}") for name in KEPT}
        kept: dict[str, Any] = {
            name: None if tensor is None else tensor[expert] for name, tensor in tensors.items()
        }
        return CodedWeight(**kept, group_size=self._group_sizes[stack]).widened(slice(None))


KEPT: Final = ("codes_OI", "scale_OG", "zero_OG", "group_I")


def _keep(layer: nn.Module, coded: CodedWeight) -> None:
    for name in KEPT:
        tensor = getattr(coded, name)
        kept = None if tensor is None else nn.Parameter(tensor, requires_grad=False)
        layer.register_parameter(name, kept)


def _kept(layer: nn.Module, group_size: int) -> CodedWeight:
    return CodedWeight(**{name: getattr(layer, name) for name in KEPT}, group_size=group_size)


def _stacks(site: ExpertsSite) -> dict[str, Site]:
    return {"gate_up": site.gate_up, "down": site.down}


def _one(bias: Tensor | None, expert: int) -> Tensor | None:
    return None if bias is None else bias[expert : expert + 1].float()
