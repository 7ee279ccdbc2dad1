"""A quantization's experts and latent weights, against what their tensors stand for.

Axis suffixes: T tokens, X experts, K chosen experts of a token, D hidden, F features of an expert,
O outputs, I inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import torch
from torch import Tensor, nn

from octavo.layers.loading import load_weights
from octavo.layers.moe import MoE, Routing, StackedTensors
from octavo.layers.stored import StoredWeight, method_at
from octavo.layers.unquantized_experts import UnquantizedExperts
from octavo.testing.quantization_samples import (
    EQUAL_ERROR,
    QuantizationSamples,
    difference,
    spec_of,
)
from octavo.testing.report import Check, tried, unclaimed
from octavo_kernels.moe.reference import experts
from octavo_registry import Part, Quantization, Shard, Site

NUM_EXPERTS: Final = 4
NUM_TOKENS: Final = 5
CHOSEN: Final = 2
Make = Callable[..., Quantization]


def latent_checks(title: str, make: Make, samples: QuantizationSamples) -> list[Check]:
    """Try the weight that latent attention takes plain."""
    name = f"{title} gives latent attention its weights"
    quantization = make(samples.config, {})
    generator = torch.Generator().manual_seed(3)
    tensors, meant_OI = samples.store(_random(samples, generator))
    shards = Shard.whole(samples.in_features), Shard.whole(samples.out_features)
    parts = (Part("kv_b_proj", shards[1]),)
    site = Site(name="kv_b_proj", kind="latent", inputs=shards[0], parts=parts)
    method = method_at(site, quantization)
    if method is None:
        return [unclaimed(name, "method_of gives None for them")]

    def problems() -> Iterator[str]:
        layer = StoredWeight(method, site, spec_of(quantization, samples, 0, 1))
        _load(layer, {f"kv_b_proj.{key}": tensor for key, tensor in tensors.items()})
        found_OI = layer.plain()
        most = EQUAL_ERROR if found_OI.dtype == torch.float32 else 2**-7
        yield from difference("the weight", found_OI, meant_OI.double(), most=most)

    return [tried(name, problems())]


def expert_checks(title: str, make: Make, samples: QuantizationSamples) -> list[Check]:
    """Try experts in one rank and in two, whose features may be padded."""
    trial = _Trial(make, samples)
    name = f"{title} multiplies experts by their weights"
    if isinstance(trial.layer(0, 1).method, UnquantizedExperts):
        return [unclaimed(name, "method_of gives None for them")]
    return [tried(name, trial.problems()), tried(f"{name} over two ranks", trial.rank_problems())]


class _Trial:
    def __init__(self, make: Make, samples: QuantizationSamples) -> None:
        self._make, self._samples = make, samples
        self._hidden, self._features = samples.in_features, samples.out_features
        generator = torch.Generator().manual_seed(4)
        wide, high = (self._features, self._hidden), (self._hidden, self._features)
        self._tensors: dict[str, Tensor] = {}
        gate_up, down = [], []
        for expert in range(NUM_EXPERTS):
            gate_FD, up_FD, down_DF = (
                torch.randn(shape, generator=generator).mul_(shape[1] ** -0.5)
                for shape in (wide, wide, high)
            )
            if samples.stacked:
                both_ED = torch.stack((gate_FD, up_FD), dim=1).flatten(0, 1)  # by turns
                meant_ED = self._stack("gate_up_proj", both_ED)
                gate_up.append(torch.cat((meant_ED[::2], meant_ED[1::2])))
                down.append(self._stack("down_proj", down_DF))
            else:
                halves = {"gate_proj": gate_FD, "up_proj": up_FD}
                meant = [self._store(expert, child, half) for child, half in halves.items()]
                gate_up.append(torch.cat(meant))
                down.append(self._store(expert, "down_proj", down_DF))
        self._gate_up_XED, self._down_XDF = torch.stack(gate_up), torch.stack(down)
        self._dtype: torch.dtype = getattr(torch, samples.dtype)
        x_TD = torch.randn(NUM_TOKENS, self._hidden, generator=generator)
        self._x_TD = x_TD.to(self._dtype)
        ids = [(t + k) % NUM_EXPERTS for t in range(NUM_TOKENS) for k in range(CHOSEN)]
        self._ids_TK = torch.tensor(ids, dtype=torch.int32).view(NUM_TOKENS, CHOSEN)
        self._weights_TK = torch.rand(NUM_TOKENS, CHOSEN, generator=generator)

    def layer(self, rank: int, num_ranks: int) -> MoE:
        """All experts, not filled."""
        return MoE(
            "mlp",
            self._hidden,
            self._features,
            routing=Routing(num_experts=NUM_EXPERTS, chosen=CHOSEN),
            activation="silu",
            checkpoint=StackedTensors(interleaved=True) if self._samples.stacked else None,
            spec=spec_of(self._make(self._samples.config, {}), self._samples, rank, num_ranks),
        )

    def problems(self) -> Iterator[str]:
        """Whether products are those of the weights."""
        layer = self._filled(0, 1)
        for what, found, meant in zip(
            ("gates and ups", "down projections"),
            layer.method.dequantize(layer),
            (self._gate_up_XED, self._down_XDF),
            strict=True,
        ):
            flat = found.flatten(0, 1) if isinstance(found, Tensor) else found
            meant_OI = meant.flatten(0, 1).double()
            yield from difference(f"dequantize of {what}", flat, meant_OI, most=EQUAL_ERROR)
        expected_TD = self._expected()
        found_TD = self._sum_of(layer, None)
        yield from difference("the sum", found_TD, expected_TD)
        residual_TD = torch.ones_like(self._x_TD)
        added_TD = self._sum_of(layer, residual_TD)
        yield from difference("the sum with a residual", added_TD, expected_TD + 1)
        if added_TD is not residual_TD:
            yield "the residual is not what is returned"

    def rank_problems(self) -> Iterator[str]:
        """Whether the ranks' sums add up."""
        sums = [self._sum_of(self._filled(rank, 2), None).double() for rank in range(2)]
        yield from difference("the sum over ranks", sums[0] + sums[1], self._expected())

    def _expected(self) -> Tensor:
        stacks = self._gate_up_XED.float(), self._down_XDF.float()
        chosen = self._ids_TK, self._weights_TK
        sum_TD: Tensor = experts(self._x_TD.float(), *stacks, *chosen, "silu", None, None, None)
        return sum_TD.double()

    def _sum_of(self, layer: MoE, residual_TD: Tensor | None) -> Tensor:
        chosen = self._ids_TK, self._weights_TK
        sum_TD: Tensor = layer.method.sum_of(layer, self._x_TD, *chosen, residual_TD)
        return sum_TD

    def _filled(self, rank: int, num_ranks: int) -> MoE:
        layer = self.layer(rank, num_ranks)
        _load(layer, self._tensors)
        layer.finish_weights()
        return layer

    def _store(self, expert: int, child: str, weight_OI: Tensor) -> Tensor:
        tensors, meant_OI = self._samples.store(weight_OI)
        for key, tensor in tensors.items():
            self._tensors[f"mlp.experts.{expert}.{child}.{key}"] = tensor
        return meant_OI

    def _stack(self, child: str, weight_OI: Tensor) -> Tensor:
        tensors, meant_OI = self._samples.store(weight_OI)
        for key, tensor in tensors.items():
            name = f"mlp.experts.{child}_{key}"
            before = [self._tensors[name]] if name in self._tensors else []
            self._tensors[name] = torch.cat((*before, tensor[None]))
        return meant_OI


def _random(samples: QuantizationSamples, generator: torch.Generator) -> Tensor:
    weight_OI = torch.randn(samples.out_features, samples.in_features, generator=generator)
    return weight_OI.mul_(samples.in_features**-0.5)


def _load(layer: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    filled = load_weights(layer, tensors.items())
    names = {name for name, _ in layer.named_parameters() if not name.startswith("router.")}
    if missing := names - filled:
        raise ValueError(f"samples have nothing for the parameters {sorted(missing)}")
