"""A quantization for tests: int8 codes with a scale for each output, of linears, experts, latents.

Axis suffixes: X experts, O outputs, I inputs, D hidden, E gates and ups, F features.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from octavo.layers.unquantized_experts import sum_by
from octavo_registry import Axis, ExpertsParameter, ExpertsSite, Site

AXES = {"codes": (Axis("out"), Axis("in")), "scale": (Axis("out"),)}
DTYPES = {"codes": torch.int8, "scale": torch.float32}


class Int8:
    """Of all but routers and both ends of the vocabulary; "ignore" lists what else is plain."""

    def __init__(self, config: Mapping[str, Any], model_config: Mapping[str, Any]) -> None:
        self.ignored = frozenset(config.get("ignore", ()))
        self.unit = config.get("unit", 1)

    def method_of(self, site: Site | ExpertsSite) -> Int8Linear | Int8Experts | None:
        if self.ignored.issuperset(site.names):
            return None
        if isinstance(site, ExpertsSite):
            return Int8Experts(self.unit)
        return Int8Linear() if site.kind in ("linear", "latent") else None


class Int8Linear:
    batch_invariant = False

    def create(
        self, layer: nn.Module, site: Site, *, dtype: torch.dtype, device: torch.device
    ) -> Mapping[str, tuple[Axis, ...]]:
        for key, axes in AXES.items():
            empty = torch.empty(site.shape(*axes), dtype=DTYPES[key], device=device)
            layer.register_parameter(key, nn.Parameter(empty, requires_grad=False))
        return AXES

    def finish(self, layer: nn.Module) -> None: ...

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None) -> Tensor:
        return functional.linear(x, self.dequantize(layer).to(x.dtype), bias)

    def dequantize(self, layer: Any) -> Tensor:
        weight_OI: Tensor = layer.codes * layer.scale[:, None]
        return weight_OI


class Int8Experts:
    batch_invariant = True

    def __init__(self, unit: int) -> None:
        self.unit = unit

    def create(
        self, layer: nn.Module, site: ExpertsSite, *, dtype: torch.dtype, device: torch.device
    ) -> Mapping[str, ExpertsParameter]:
        filled = {}
        for stack in ("gate_up", "down"):
            for key, axes in AXES.items():
                shape = (site.num_experts, *getattr(site, stack).shape(*axes))
                empty = torch.empty(shape, dtype=DTYPES[key], device=device)
                layer.register_parameter(f"{stack}_{key}", nn.Parameter(empty, False))
                filled[f"{stack}_{key}"] = ExpertsParameter(stack, key, axes)
        return filled

    def finish(self, layer: nn.Module) -> None: ...

    def dequantize(self, layer: Any) -> tuple[Tensor, Tensor]:
        return (
            layer.gate_up_codes * layer.gate_up_scale[..., None],
            layer.down_codes * layer.down_scale[..., None],
        )

    def sum_of(
        self,
        layer: Any,
        x_TD: Tensor,
        ids_TK: Tensor,
        weights_TK: Tensor,
        residual_TD: Tensor | None,
    ) -> Tensor:
        stacks = (weights.to(x_TD.dtype) for weights in self.dequantize(layer))
        return sum_by(layer, *stacks, x_TD, ids_TK, weights_TK, residual_TD)


def store(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """What a checkpoint has of a weight [..., O, I], and the weight that this stands for."""
    scale = weight.float().abs().amax(-1) / 127
    codes = (weight / scale[..., None]).round().to(torch.int8)
    return {"codes": codes, "scale": scale}, codes * scale[..., None]


def stored(
    tensors: Mapping[str, Tensor], is_quantized: Callable[[str], bool]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """A checkpoint whose weights of some names are int8, and the same with what these stand for."""
    quantized, plain = {}, {}
    for name, tensor in tensors.items():
        parent, _, key = name.rpartition(".")
        if key != "weight" or not is_quantized(parent):
            quantized[name] = plain[name] = tensor
            continue
        codes, plain[name] = store(tensor)
        quantized |= {f"{parent}.{each}": its for each, its in codes.items()}
    return quantized, plain
