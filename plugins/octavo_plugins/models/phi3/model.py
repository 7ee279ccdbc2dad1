"""Phi 3 and 4: Llama's layers, fused in the checkpoint; long rope; a part of each head may turn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.layers.attention import SelfAttention, head_dim_of, window_of
from octavo.layers.decoder import CausalLM, PreNormLayer
from octavo.layers.language_model import with_defaults
from octavo.layers.mlp import GatedMLP
from octavo.layers.rotary import RotaryEmbedding
from octavo_registry.model import ModelSpec


class Phi3(CausalLM):
    """Phi3ForCausalLM."""

    def __init__(self, spec: ModelSpec) -> None:
        spec = with_defaults(spec, rms_norm_eps=1e-5)
        super().__init__(spec, decoder_layer, RotaryEmbedding(rotary_dim(spec.config), spec=spec))


def decoder_layer(spec: ModelSpec, index: int) -> PreNormLayer:
    """No linear has a bias."""
    config, name = spec.config, f"model.layers.{index}"
    attention = SelfAttention(
        f"{name}.self_attn", spec, window=window_of(config, index), stored_fused=True
    )
    mlp = GatedMLP(
        f"{name}.mlp",
        config["hidden_size"],
        config["intermediate_size"],
        activation=config.get("hidden_act", "silu"),
        bias=False,
        spec=spec,
        stored_fused=True,
    )
    return PreNormLayer(name, spec, attention, mlp)


def rotary_dim(config: Mapping[str, Any]) -> int:
    """Entries of a head that turn."""
    rope = config.get("rope_parameters") or {}
    part = rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    return int(head_dim_of(config) * part)
