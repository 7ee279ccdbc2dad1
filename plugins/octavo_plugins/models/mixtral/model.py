"""Mixtral: a Llama whose feed-forward layers choose among experts."""

from __future__ import annotations

from octavo.layers.attention import SelfAttention, head_dim_of, window_of
from octavo.layers.decoder import CausalLM, PreNormLayer
from octavo.layers.moe import ExpertTensors, MoE, Routing
from octavo.layers.rotary import RotaryEmbedding
from octavo_registry.model import ModelSpec


class Mixtral(CausalLM):
    """MixtralForCausalLM."""

    def __init__(self, spec: ModelSpec) -> None:
        rotary = RotaryEmbedding(head_dim_of(spec.config), spec=spec)
        super().__init__(spec, decoder_layer, rotary)


def decoder_layer(spec: ModelSpec, index: int) -> PreNormLayer:
    """The weights of the chosen experts sum to one."""
    config, name = spec.config, f"model.layers.{index}"
    experts = MoE(
        f"{name}.block_sparse_moe",
        config["hidden_size"],
        config["intermediate_size"],
        routing=Routing(
            num_experts=config["num_local_experts"], chosen=config["num_experts_per_tok"]
        ),
        activation=config.get("hidden_act", "silu"),
        checkpoint=ExpertTensors(gate="experts.{}.w1", up="experts.{}.w3", down="experts.{}.w2"),
        spec=spec,
    )
    attention = SelfAttention(f"{name}.self_attn", spec, window=window_of(config, index))
    return PreNormLayer(name, spec, attention, experts)
