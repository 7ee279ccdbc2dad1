"""Qwen 3: Llama's layers with RMS norms over each head of queries and keys."""

from __future__ import annotations

from octavo.layers.attention import SelfAttention, head_dim_of
from octavo.layers.decoder import CausalLM, PreNormLayer
from octavo.layers.language_model import with_defaults
from octavo.layers.mlp import GatedMLP
from octavo.layers.rotary import RotaryEmbedding
from octavo_plugins.models.qwen2.model import window_of_later
from octavo_registry.model import ModelSpec


class Qwen3(CausalLM):
    """Qwen3ForCausalLM."""

    def __init__(self, spec: ModelSpec) -> None:
        spec = with_defaults(spec, head_dim=128)
        super().__init__(spec, decoder_layer, RotaryEmbedding(head_dim_of(spec.config), spec=spec))


def decoder_layer(spec: ModelSpec, index: int) -> PreNormLayer:
    """The later layers may have a window, as in Qwen 2."""
    config, name = spec.config, f"model.layers.{index}"
    attention = SelfAttention(
        f"{name}.self_attn",
        spec,
        window=window_of_later(config, index),
        norm_heads=True,
        bias=config.get("attention_bias", False),
    )
    mlp = GatedMLP(
        f"{name}.mlp",
        config["hidden_size"],
        config["intermediate_size"],
        activation=config.get("hidden_act", "silu"),
        bias=False,
        spec=spec,
    )
    return PreNormLayer(name, spec, attention, mlp)
