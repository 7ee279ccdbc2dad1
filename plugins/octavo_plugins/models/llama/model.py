"""Llama: RMS norms before attention and MLP, rotary positions, grouped key/value heads.

Axis suffixes: T tokens, D hidden, H query heads, K key/value heads, R rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from octavo.errors import ModelError
from octavo.layers.attention import Attention, cache_specs
from octavo.layers.embedding import VocabParallelEmbedding
from octavo.layers.linear import QKVLinear, RowParallelLinear
from octavo.layers.loading import load_weights
from octavo.layers.logits import LMHead
from octavo.layers.mlp import GatedMLP
from octavo.layers.norm import RMSNorm
from octavo.layers.rotary import Angles, RotaryEmbedding
from octavo.layers.sharding import Stage
from octavo_registry.cache import CacheSpec
from octavo_registry.model import ModelSpec
from octavo_registry.step import Step


class Llama(nn.Module):
    """LlamaForCausalLM; config.json may give all or some layers a sliding window."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        config = spec.config
        self.stage = Stage.of(spec, config["num_hidden_layers"])
        self.model = Decoder(spec, self.stage)
        self._is_tied = bool(config.get("tie_word_embeddings"))
        if self.stage.is_last:
            self.lm_head = LMHead(
                "lm_head",
                config["vocab_size"],
                config["hidden_size"],
                spec=spec,
                checkpoint_name="model.embed_tokens" if self._is_tied else None,
                tied_to=self.model.embed_tokens if self._is_tied and self.stage.is_first else None,
            )

    def cache_specs(self) -> dict[str, CacheSpec]:
        """Full attention, or a sliding window, for each layer."""
        return cache_specs(self)

    def embed(self, tokens_T: Tensor, media: Mapping[str, Any]) -> Tensor:
        """The input embedding; only on the first stage."""
        x_TD: Tensor = self.model.embed_tokens(tokens_T)
        return x_TD

    def forward(self, x_TD: Tensor, step: Step) -> Tensor:
        """This stage's layers; the last one also normalises."""
        angles = self.model.rotary(step.positions_AT[0])
        for layer in self.model.layers.values():
            x_TD = layer(x_TD, angles, step)
        return self.model.norm(x_TD) if self.stage.is_last else x_TD

    def logits(self, hidden_RD: Tensor) -> Tensor:
        """The output embedding; only on the last stage."""
        logits_RV: Tensor = self.lm_head(hidden_RD)
        return logits_RV

    def load(self, tensors: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Fill this stage's parameters from a Hugging Face checkpoint."""
        return load_weights(self, tensors, ignore=self._is_not_needed)

    def _is_not_needed(self, name: str) -> bool:
        if name.endswith(".rotary_emb.inv_freq"):  # old checkpoints; it follows from config.json
            return True
        return self.stage.is_elsewhere(name) or (self._is_tied and name == "lm_head.weight")


class Decoder(nn.Module):
    """What checkpoints call ``model``; layers are keyed by their number in the whole model."""

    def __init__(self, spec: ModelSpec, stage: Stage) -> None:
        super().__init__()
        config = spec.config
        hidden_size = config["hidden_size"]
        if stage.is_first:
            self.embed_tokens = VocabParallelEmbedding(
                "model.embed_tokens", config["vocab_size"], hidden_size, spec=spec
            )
        self.rotary = RotaryEmbedding(head_dim_of(config), spec=spec)
        self.layers = nn.ModuleDict({str(i): DecoderLayer(spec, i) for i in stage.layers})
        if stage.is_last:
            self.norm = RMSNorm("model.norm", hidden_size, norm_eps_of(config), spec=spec)


class DecoderLayer(nn.Module):
    """Attention and MLP, each behind its norm and added to the residual stream."""

    def __init__(self, spec: ModelSpec, index: int) -> None:
        super().__init__()
        config, name = spec.config, f"model.layers.{index}"
        hidden_size, eps = config["hidden_size"], norm_eps_of(config)
        self.input_layernorm = RMSNorm(f"{name}.input_layernorm", hidden_size, eps, spec=spec)
        self.self_attn = SelfAttention(f"{name}.self_attn", spec, window_of(config, index))
        self.post_attention_layernorm = RMSNorm(
            f"{name}.post_attention_layernorm", hidden_size, eps, spec=spec
        )
        self.mlp = GatedMLP(
            f"{name}.mlp",
            hidden_size,
            config["intermediate_size"],
            activation=config.get("hidden_act", "silu"),
            bias=config.get("mlp_bias", False),
            spec=spec,
        )

    def forward(self, x_TD: Tensor, angles: Angles, step: Step) -> Tensor:
        """The residual stream after this layer, in place."""
        self.self_attn(x_TD, self.input_layernorm(x_TD), angles, step)
        out_TD: Tensor = self.mlp.add_to(x_TD, self.post_attention_layernorm(x_TD))
        return out_TD


class SelfAttention(nn.Module):
    """Projections and rotary positions around the attention over the cache."""

    def __init__(self, name: str, spec: ModelSpec, window: int | None) -> None:
        super().__init__()
        config = spec.config
        self.head_dim = head_dim_of(config)
        heads, bias = config["num_attention_heads"], config.get("attention_bias", False)
        self.qkv_proj = QKVLinear(
            f"{name}.qkv_proj",
            config["hidden_size"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=self.head_dim,
            bias=bias,
            spec=spec,
        )
        self.attention = Attention(
            f"{name}.attention",
            kv_heads=self.qkv_proj.kv_heads,
            head_dim=self.head_dim,
            spec=spec,
            window=window,
        )
        self.o_proj = RowParallelLinear(
            f"{name}.o_proj", heads * self.head_dim, config["hidden_size"], bias=bias, spec=spec
        )

    def forward(self, residual_TD: Tensor, x_TD: Tensor, angles: Angles, step: Step) -> Tensor:
        """Add the layer's result for x to the residual stream in place, and return it."""
        q_THD, k_TKD, v_TKD = self.qkv_proj.heads_of(x_TD)
        out_THD = self.attention(q_THD, k_TKD, v_TKD, step, angles)
        return self.o_proj.add_to(residual_TD, out_THD.flatten(1))


def norm_eps_of(config: Mapping[str, Any]) -> float:
    """Given, or what transformers takes."""
    return float(config.get("rms_norm_eps", 1e-6))


def head_dim_of(config: Mapping[str, Any]) -> int:
    """Given, or an equal part of the hidden size."""
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def window_of(config: Mapping[str, Any], index: int) -> int | None:
    """Tokens that a layer sees, None for all; by ``layer_types`` where config.json has them."""
    if config.get("use_sliding_window") is False or config.get("sliding_window") is None:
        return None
    window = int(config["sliding_window"])
    layer_types = config.get("layer_types")
    if layer_types is None:
        return window
    layer_type = layer_types[index]
    if layer_type not in ("full_attention", "sliding_attention"):
        raise ModelError(
            f"layer_types[{index}]={layer_type!r} in config.json is not known; "
            "known: full_attention, sliding_attention"
        )
    return window if layer_type == "sliding_attention" else None
