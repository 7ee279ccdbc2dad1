"""Mistral: Llama's layers, all or some of them with a sliding window."""

from __future__ import annotations

from octavo.layers.attention import SelfAttention, head_dim_of, window_of
from octavo.layers.decoder import CausalLM, PreNormLayer
from octavo.layers.language_model import with_defaults
from octavo.layers.mlp import GatedMLP
from octavo.layers.rotary import RotaryEmbedding
from octavo_registry.model import ModelSpec


class Mistral(CausalLM):
    """MistralForCausalLM and MinistralForCausalLM."""

    def __init__(self, spec: ModelSpec) -> None:
        spec = with_defaults(spec, sliding_window=4096)
        super().__init__(spec, decoder_layer, RotaryEmbedding(head_dim_of(spec.config), spec=spec))


def decoder_layer(spec: ModelSpec, index: int) -> PreNormLayer:
    """The window is that of all layers, or of those that ``layer_types`` names."""
    config, name = spec.config, f"model.layers.{index}"
    attention = SelfAttention(f"{name}.self_attn", spec, window=window_of(config, index))
    mlp = GatedMLP(
        f"{name}.mlp",
        config["hidden_size"],
        config["intermediate_size"],
        activation=config.get("hidden_act", "silu"),
        bias=False,
        spec=spec,
    )
    return PreNormLayer(name, spec, attention, mlp)
