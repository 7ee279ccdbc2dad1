"""Llama: RMS norms before attention and MLP, rotary positions, grouped key/value heads."""

from __future__ import annotations

from octavo.layers.attention import SelfAttention, head_dim_of, window_of
from octavo.layers.decoder import CausalLM, PreNormLayer
from octavo.layers.mlp import GatedMLP
from octavo.layers.rotary import RotaryEmbedding
from octavo_registry.model import ModelSpec


class Llama(CausalLM):
    """LlamaForCausalLM; config.json may give all or some layers a sliding window."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec, decoder_layer, RotaryEmbedding(head_dim_of(spec.config), spec=spec))


def decoder_layer(spec: ModelSpec, index: int) -> PreNormLayer:
    """All linears of a layer may have biases."""
    config, name = spec.config, f"model.layers.{index}"
    attention = SelfAttention(
        f"{name}.self_attn",
        spec,
        window=window_of(config, index),
        bias=config.get("attention_bias", False),
    )
    mlp = GatedMLP(
        f"{name}.mlp",
        config["hidden_size"],
        config["intermediate_size"],
        activation=config.get("hidden_act", "silu"),
        bias=config.get("mlp_bias", False),
        spec=spec,
    )
    return PreNormLayer(name, spec, attention, mlp)
