"""gpt-oss: attention sinks, windows on every other layer, biased experts with a clamped gate."""

from __future__ import annotations

from octavo.errors import ModelError
from octavo.layers.attention import SelfAttention, head_dim_of, window_of
from octavo.layers.decoder import CausalLM, PreNormLayer
from octavo.layers.moe import MoE, Routing, StackedTensors
from octavo.layers.rotary import RotaryEmbedding
from octavo_registry.model import ModelSpec

GATE = {"swiglu_alpha": 1.702, "swiglu_limit": 7.0}
"""The experts' activation, which the kernels have with these numbers."""


class GptOss(CausalLM):
    """GptOssForCausalLM with weights in 16 or 32 bits."""

    def __init__(self, spec: ModelSpec) -> None:
        for name, value in GATE.items():
            if spec.config.get(name, value) != value:
                raise ModelError(
                    f"{name}={spec.config[name]} in config.json: the experts of "
                    f"{spec.architecture} can be computed with {value} only"
                )
        rotary = RotaryEmbedding(head_dim_of(spec.config), spec=spec)
        super().__init__(spec, decoder_layer, rotary)


def decoder_layer(spec: ModelSpec, index: int) -> PreNormLayer:
    """Layers with and without a window take turns, if ``layer_types`` says nothing else."""
    config, name = spec.config, f"model.layers.{index}"
    attention = SelfAttention(
        f"{name}.self_attn",
        spec,
        window=window_of(config, index, pattern=2),
        sinks=True,
        bias=config.get("attention_bias", True),
    )
    experts = MoE(
        f"{name}.mlp",
        config["hidden_size"],
        config["intermediate_size"],
        routing=Routing(
            num_experts=config["num_local_experts"],
            chosen=config["num_experts_per_tok"],
            score="softmax_after",
            router="router",
            router_bias=True,
        ),
        activation="swiglu_oai",
        bias=True,
        checkpoint=StackedTensors(transposed=True, interleaved=True),
        spec=spec,
    )
    return PreNormLayer(name, spec, attention, experts)
