"""OLMo 2: norms behind attention and MLP, and over all queries and all keys of a token.

Axis suffixes: T tokens, D hidden, H query heads, K key/value heads, E entries of all heads.
"""

from __future__ import annotations

from torch import Tensor

from octavo.layers.attention import SelfAttention, head_dim_of
from octavo.layers.decoder import CausalLM, SerialLayer, layer_norm
from octavo.layers.language_model import with_defaults
from octavo.layers.mlp import GatedMLP
from octavo.layers.norm import SplitRMSNorm
from octavo.layers.rotary import Angles, RotaryEmbedding
from octavo_registry.model import ModelSpec
from octavo_registry.step import Step


class Olmo2(CausalLM):
    """Olmo2ForCausalLM."""

    def __init__(self, spec: ModelSpec) -> None:
        spec = with_defaults(spec, rms_norm_eps=1e-5)
        super().__init__(spec, DecoderLayer, RotaryEmbedding(head_dim_of(spec.config), spec=spec))


class DecoderLayer(SerialLayer):
    """Attention and MLP, each with a norm between its result and the residual stream."""

    def __init__(self, spec: ModelSpec, index: int) -> None:
        super().__init__()
        config, name = spec.config, f"model.layers.{index}"
        self.self_attn = NormedAttention(f"{name}.self_attn", spec)
        self.post_attention_layernorm = layer_norm(f"{name}.post_attention_layernorm", spec)
        self.mlp = GatedMLP(
            f"{name}.mlp",
            config["hidden_size"],
            config["intermediate_size"],
            activation=config.get("hidden_act", "silu"),
            bias=False,
            spec=spec,
        )
        self.post_feedforward_layernorm = layer_norm(f"{name}.post_feedforward_layernorm", spec)

    def attend(self, x_TD: Tensor, angles: Angles, step: Step) -> Tensor:
        """See ``SerialLayer``."""
        return self.self_attn.attend(x_TD, angles, step)

    def add_attention(self, x_TD: Tensor, heads_TE: Tensor) -> None:
        """See ``SerialLayer``."""
        x_TD.add_(self.post_attention_layernorm(self.self_attn.o_proj(heads_TE)))

    def add_feed_forward(self, x_TD: Tensor) -> Tensor:
        """See ``SerialLayer``."""
        return x_TD.add_(self.post_feedforward_layernorm(self.mlp(x_TD)))


class NormedAttention(SelfAttention):
    """Queries and keys are normalised before they are split into heads."""

    q_norm: SplitRMSNorm
    k_norm: SplitRMSNorm

    def __init__(self, name: str, spec: ModelSpec) -> None:
        super().__init__(name, spec, bias=spec.config.get("attention_bias", False))
        eps = spec.config["rms_norm_eps"]
        (_, queries), (_, keys), _ = self.qkv_proj.parts
        self.q_norm = SplitRMSNorm(f"{name}.q_norm", queries, eps, spec=spec)
        self.k_norm = SplitRMSNorm(f"{name}.k_norm", keys, eps, spec=spec)

    def project(self, x_TD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [T, H, D], keys and values [T, K, D]."""
        q_THD, k_TKD, v_TKD = super().project(x_TD)
        return (
            self.q_norm(q_THD.flatten(1)).view(q_THD.shape),
            self.k_norm(k_TKD.flatten(1)).view(k_TKD.shape),
            v_TKD,
        )
