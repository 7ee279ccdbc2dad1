"""Qwen 2 and 2.5: Llama's layers with biases on queries, keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.layers.attention import SelfAttention, head_dim_of, window_of
from octavo.layers.decoder import CausalLM, PreNormLayer
from octavo.layers.mlp import GatedMLP
from octavo.layers.rotary import RotaryEmbedding
from octavo_registry.model import ModelSpec


class Qwen2(CausalLM):
    """Qwen2ForCausalLM."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec, decoder_layer, RotaryEmbedding(head_dim_of(spec.config), spec=spec))


def decoder_layer(spec: ModelSpec, index: int) -> PreNormLayer:
    """The later layers may have a window."""
    config, name = spec.config, f"model.layers.{index}"
    attention = SelfAttention(
        f"{name}.self_attn",
        spec,
        window=window_of_later(config, index),
        bias=True,
        out_bias=False,
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


def window_of_later(config: Mapping[str, Any], index: int) -> int | None:
    """A layer's window, where ``use_sliding_window`` switches them on.

    Older config.json have no ``layer_types``: layers from ``max_window_layers`` on have it then.
    """
    if not config.get("use_sliding_window", False):
        return None
    if config.get("layer_types") is None and index < config.get("max_window_layers", 28):
        return None
    return window_of(config, index)
