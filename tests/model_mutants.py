"""Llamas with one mistake each, as a plugin; the conformance kit must find them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from torch import Tensor
from transformers import LlamaForCausalLM

from octavo.layers.attention import head_dim_of
from octavo.layers.decoder import CausalLM, PreNormLayer
from octavo.layers.rotary import RotaryEmbedding
from octavo.testing.variants import Variant
from octavo_plugins.models.llama.model import Llama, decoder_layer
from octavo_registry import LazyRegistry, Model, ModelCapabilities, ModelSpec, Step, hookimpl

OCTAVO_API = "1"

LLAMA = "transformers:LlamaForCausalLM"
VARIANTS = {
    "one layer": Variant(config={"num_hidden_layers": 1}),
    "windows": Variant(config={"sliding_window": 20}, reference="transformers:MistralForCausalLM"),
}


@hookimpl
def register_models(models: LazyRegistry[Model]) -> None:
    for mutant in (*ALWAYS_WRONG, WrongAlone, WrongInSevens):
        add(models, mutant.__name__, reference=LLAMA)
    add(models, "PartlyAdapted", reference=LLAMA, lora=True)
    add(models, "Deaf", reference="model_mutants:DeafReference")
    add(models, "WithoutReference", target="Llama")
    add(models, "ReferenceIsGone", target="Llama", reference="transformers:NoSuchModel")
    add(models, "Embedder", target="Llama", tasks=("embed",))
    add(models, "NoVariants", target="Llama", conformance="model_mutants:LLAMA")


def add(models: LazyRegistry[Model], name: str, target: str = "", **capabilities: Any) -> None:
    given = {"conformance": "model_mutants:VARIANTS", **capabilities}
    models.add(name, f"model_mutants:{target or name}", capabilities=ModelCapabilities(**given))


class OtherEpsilon(Llama):
    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(changed(spec, rms_norm_eps=1e-6))


class NoRotary(Llama):
    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(changed(spec, rope_parameters={"rope_theta": 1e30}))


class SwappedHeads(Llama):
    """The two heads of values are loaded in the wrong order."""

    def load(self, tensors: Iterable[tuple[str, Tensor]]) -> set[str]:
        return super().load(
            (name, tensor.roll(len(tensor) // 2, 0) if "v_proj" in name else tensor)
            for name, tensor in tensors
        )


class WiderWindow(Llama):
    def __init__(self, spec: ModelSpec) -> None:
        window = spec.config.get("sliding_window")
        super().__init__(changed(spec, sliding_window=None if window is None else window + 1))


class LeaksBetweenRequests(Llama):
    def forward(self, x_TD: Tensor, step: Step) -> Tensor:
        return super().forward(x_TD + 1e-3 * x_TD.mean(0), step)


class Raises(Llama):
    def forward(self, x_TD: Tensor, step: Step) -> Tensor:
        raise ValueError("no forward today")


class WrongAlone(Llama):
    """A decode step of one row goes wrong, and no other."""

    def forward(self, x_TD: Tensor, step: Step) -> Tensor:
        return super().forward(x_TD * 1.01 if step.num_tokens == 1 else x_TD, step)


class WrongInSevens(Llama):
    """A step of seven tokens goes wrong, and no other."""

    def forward(self, x_TD: Tensor, step: Step) -> Tensor:
        return super().forward(x_TD * 1.01 if step.num_tokens == 7 else x_TD, step)


ALWAYS_WRONG = (
    OtherEpsilon,
    NoRotary,
    SwappedHeads,
    WiderWindow,
    LeaksBetweenRequests,
    Raises,
)


class PartlyAdapted(CausalLM):
    """Right, but that adapters do not reach the linears of its first layer."""

    def __init__(self, spec: ModelSpec) -> None:
        rotary = RotaryEmbedding(head_dim_of(spec.config), spec=spec)
        super().__init__(spec, self._layer, rotary)

    @staticmethod
    def _layer(spec: ModelSpec, index: int) -> PreNormLayer:
        return decoder_layer(spec if index else replace(spec, adapters=None), index)


class Deaf(Llama):
    """What came before a token does not count, so that no fault of the cache can show."""

    def forward(self, x_TD: Tensor, step: Step) -> Tensor:
        super().forward(x_TD.clone(), step)
        return self.model.norm(x_TD)


class DeafReference(LlamaForCausalLM):
    """The same in Transformers."""

    def forward(self, tokens_BT: Tensor) -> Tensor:
        return self.lm_head(self.model.norm(self.model.embed_tokens(tokens_BT)))


def changed(spec: ModelSpec, **config: Any) -> ModelSpec:
    return replace(spec, config={**spec.config, **config})
