"""A quantization's linears: against the weights that its tensors stand for, or against themselves.

Axis suffixes: T tokens, I inputs, O outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from octavo.errors import OctavoError
from octavo.layers.linear import ColumnParallelLinear, RowParallelLinear
from octavo.layers.loading import load_weights
from octavo.layers.unquantized import UnquantizedLinear
from octavo.testing.quantization_experts import expert_checks, latent_checks
from octavo.testing.quantization_samples import (
    EQUAL_ERROR,
    QuantizationSamples,
    difference,
    spec_of,
)
from octavo.testing.report import Check, tried, unclaimed
from octavo.testing.samples import samples_of
from octavo_registry import FusedProducts, ModelSpec, PluginHost, Quantization
from octavo_registry.faults import one_line

__all__ = ["QuantizationSamples", "check_quantization"]

NUM_TOKENS: Final = 5


def check_quantization(host: PluginHost, name: str) -> list[Check]:
    """Try fused linears, experts and latent weights, and those of two tensor parallel ranks."""
    title = f"quantization {name!r}"
    samples: QuantizationSamples | None = samples_of(host.quantizations, name)
    make = partial(host.quantizations.make, name)
    if samples is None:
        config: Mapping[str, Any] = {"quant_method": name}
        missing = "samples= are not given, so that nothing says what its weights should be"
        stand_in = QuantizationSamples(store=lambda weight_OI: ({}, weight_OI), config=config)
        try:
            trial = _Trial(make, stand_in)
            trial.linear(0, 1)
        except OctavoError as error:
            return [unclaimed(f"{title} multiplies", f"{missing}; {one_line(error)}")]
        return [
            tried(f"{title} multiplies as a linear does", trial.oddities()),
            unclaimed(f"{title} multiplies by its weights", missing),
        ]
    trial = _Trial(make, samples)
    others = [*latent_checks(title, make, samples), *expert_checks(title, make, samples)]
    if isinstance(trial.linear(0, 1).method, UnquantizedLinear):
        reason = "method_of gives None for linears, which stay plain"
        return [unclaimed(f"{title} multiplies as a linear does", reason), *others]
    return [
        tried(f"{title} equals the weights that its tensors stand for", trial.problems()),
        tried(f"{title} equals them over two ranks", trial.rank_problems()),
        tried(f"{title} does what follows a product as its own operation", trial.fused_problems()),
        *others,
    ]


class _Trial:
    def __init__(self, make: Callable[..., Quantization], samples: QuantizationSamples) -> None:
        self._make, self._samples = make, samples
        self._dtype: torch.dtype = getattr(torch, samples.dtype)
        generator = torch.Generator().manual_seed(0)
        self._inputs, self._outputs = samples.in_features, samples.out_features
        shape = (self._outputs, self._inputs)
        parts = [torch.randn(shape, generator=generator) / self._inputs**0.5 for _ in range(2)]
        stored = [samples.store(part_OI) for part_OI in parts]
        self._tensors = [tensors for tensors, _ in stored]
        self._weights = [meant_OI.double() for _, meant_OI in stored]
        self._bias_O = torch.randn(2 * self._outputs, generator=generator)
        self.x_TI = torch.randn(NUM_TOKENS, self._inputs, generator=generator).to(self._dtype)

    def linear(self, rank: int, num_ranks: int) -> ColumnParallelLinear:
        """Two linears of a checkpoint in one product, not filled."""
        spec = self._spec(rank, num_ranks)
        parts = {"gate_proj": self._outputs, "up_proj": self._outputs}
        return ColumnParallelLinear("mlp.gate_up_proj", self._inputs, parts, bias=True, spec=spec)

    def problems(self) -> Iterator[str]:
        """Whether the product is that of the weights."""
        layer = self._filled(0, 1)
        weight_OI = torch.cat(self._weights)
        yield from difference(
            "dequantize", layer.method.dequantize(layer), weight_OI, most=EQUAL_ERROR
        )
        expected_TO = self.x_TI.double() @ weight_OI.mT + self._bias_O.double()
        yield from difference("the product", layer(self.x_TI), expected_TO)
        yield from difference("the product of one row", layer(self.x_TI[:1]), expected_TO[:1])

    def rank_problems(self) -> Iterator[str]:
        """Whether each rank has its part of the outputs, or of the inputs."""
        x_TI = self.x_TI.double()
        halves_TO = [layer(self.x_TI) for layer in (self._filled(rank, 2) for rank in range(2))]
        for rank, found_TO in enumerate(halves_TO):
            rows = slice(rank * self._outputs // 2, (rank + 1) * self._outputs // 2)
            weight_OI = torch.cat([part_OI[rows] for part_OI in self._weights])
            bias_O = torch.cat([part_O[rows] for part_O in self._bias_O.double().chunk(2)])
            yield from difference(f"outputs of rank {rank}", found_TO, x_TI @ weight_OI.mT + bias_O)
        sum_TO = torch.zeros(NUM_TOKENS, self._outputs, dtype=torch.float64)
        for rank in range(2):
            layer = RowParallelLinear(
                "down", self._inputs, self._outputs, bias=False, spec=self._spec(rank, 2)
            )
            self._load(layer, {f"down.{key}": tensor for key, tensor in self._tensors[0].items()})
            sum_TO += layer(self.x_TI.chunk(2, dim=1)[rank]).double()
        yield from difference("the sum over ranks", sum_TO, x_TI @ self._weights[0].mT)

    def fused_problems(self) -> Iterator[str]:
        """What is wrong with its ``FusedProducts``, if it is one."""
        layer = self._filled(0, 1)
        method = layer.method
        if not isinstance(method, FusedProducts):
            return
        plain_TO = layer(self.x_TI).double()
        gate_TO, up_TO = plain_TO.chunk(2, dim=1)
        results = {
            "gated": (
                method.gated(layer, self.x_TI, layer.bias, "silu"),
                functional.silu(gate_TO) * up_TO,
            ),
            "activated": (
                method.activated(layer, self.x_TI, layer.bias, "gelu"),
                functional.gelu(plain_TO),
            ),
            "add_": (
                method.add_(layer, torch.ones_like(layer(self.x_TI)), self.x_TI, layer.bias),
                plain_TO + 1,
            ),
        }
        for name, (found_TO, expected_TO) in results.items():
            yield from difference(name, found_TO, expected_TO)

    def oddities(self) -> Iterator[str]:
        """What no linear does, whatever its weights are."""
        products = []
        for seed in range(2):
            layer = self.linear(0, 1)
            self._fill_with_noise(layer, seed)
            layer.finish_weights()
            products.append(layer(self.x_TI))
        found_TO = products[0]
        yield from difference("the product", found_TO, found_TO.double(), 2 * self._outputs)
        if torch.equal(*products):
            yield "other tensors in its parameters give the same product"
        if torch.equal(found_TO[0], found_TO[1]):
            yield "other inputs give the same product"
        doubled_TO = layer(2 * self.x_TI).double() - layer(self.x_TI).double()
        without_bias_TO = layer(self.x_TI).double() - layer(torch.zeros_like(self.x_TI)).double()
        yield from difference("the product of doubled inputs", doubled_TO, without_bias_TO)
        yield from difference("the product of one row", layer(self.x_TI[:1]), products[1][:1])
        shifted_TO = layer.method.apply(layer, self.x_TI, self._bias_O.to(self._dtype))
        unshifted_TO = layer.method.apply(layer, self.x_TI, None)
        if not torch.allclose(
            shifted_TO.double() - unshifted_TO.double(), self._bias_O.double(), atol=0.05
        ):
            yield "the bias is not added"

    def _spec(self, rank: int, num_ranks: int) -> ModelSpec:
        return spec_of(self._make(self._samples.config, {}), self._samples, rank, num_ranks)

    def _filled(self, rank: int, num_ranks: int) -> ColumnParallelLinear:
        layer = self.linear(rank, num_ranks)
        tensors: dict[str, Tensor] = {}
        names = ("gate_proj", "up_proj")
        for name, stored, bias_O in zip(names, self._tensors, self._bias_O.chunk(2), strict=True):
            tensors |= {f"mlp.{name}.{key}": tensor for key, tensor in stored.items()}
            tensors[f"mlp.{name}.bias"] = bias_O
        self._load(layer, tensors)
        return layer

    def _load(self, layer: Any, tensors: Mapping[str, Tensor]) -> None:
        filled = load_weights(layer, tensors.items())
        if missing := {name for name, _ in layer.named_parameters()} - filled:
            raise ValueError(f"samples have nothing for the parameters {sorted(missing)}")
        layer.finish_weights()

    def _fill_with_noise(self, layer: nn.Module, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for parameter in layer.parameters():
            if parameter.dtype.is_floating_point:
                noise = 0.1 + 0.05 * torch.randn(parameter.shape, generator=generator)
                parameter.data.copy_(noise.to(parameter.dtype))
            else:
                parameter.data.copy_(torch.randint(0, 100, parameter.shape, generator=generator))
