"""Granite: Llama's layers, with multipliers at embedding, attention, residual stream and logits.

Axis suffixes: R rows, D hidden, V vocabulary.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from octavo.layers.attention import SelfAttention, head_dim_of
from octavo.layers.decoder import CausalLM, PreNormLayer
from octavo.layers.mlp import GatedMLP
from octavo.layers.rotary import RotaryEmbedding
from octavo_registry.model import ModelSpec


class Granite(CausalLM):
    """GraniteForCausalLM.

    What a layer adds to the residual stream is to be multiplied by ``residual_multiplier``. Here
    the stream is kept divided by it instead, so that layers add what they give in the product's own
    kernel: the embedding begins so, and as nothing but norms reads the stream, their epsilon makes
    it the same.
    """

    def __init__(self, spec: ModelSpec) -> None:
        config = spec.config
        unit = config.get("residual_multiplier", 1.0)
        eps = config.get("rms_norm_eps", 1e-6) / unit**2
        spec = replace(spec, config={**config, "rms_norm_eps": eps})
        super().__init__(
            spec,
            decoder_layer,
            RotaryEmbedding(head_dim_of(config), spec=spec),
            embedding_scale=config.get("embedding_multiplier", 1.0) / unit,
        )
        self._logits_scaling = config.get("logits_scaling", 1.0)

    def logits(self, hidden_RD: Tensor) -> Tensor:
        """The output embedding of what is scaled before, which is shorter than the logits."""
        return super().logits(hidden_RD / self._logits_scaling)


def decoder_layer(spec: ModelSpec, index: int) -> PreNormLayer:
    """All linears of a layer may have biases."""
    config, name = spec.config, f"model.layers.{index}"
    attention = SelfAttention(
        f"{name}.self_attn",
        spec,
        scale=config.get("attention_multiplier", 1.0),
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
