"""Qwen3 with experts: norms of queries and keys, and dense layers among those with experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.layers.attention import SelfAttention, head_dim_of, window_of
from octavo.layers.decoder import CausalLM, PreNormLayer
from octavo.layers.mlp import GatedMLP
from octavo.layers.moe import MoE, Routing, StackedTensors
from octavo.layers.rotary import RotaryEmbedding
from octavo_registry.model import ModelSpec


class Qwen3Moe(CausalLM):
    """Qwen3MoeForCausalLM."""

    def __init__(self, spec: ModelSpec) -> None:
        rotary = RotaryEmbedding(head_dim_of(spec.config), spec=spec)
        super().__init__(spec, decoder_layer, rotary)


def decoder_layer(
    spec: ModelSpec, index: int, checkpoint: StackedTensors | None = None
) -> PreNormLayer:
    """A layer with experts, or a dense one."""
    config, name = spec.config, f"model.layers.{index}"
    attention = SelfAttention(
        f"{name}.self_attn",
        spec,
        window=window_of(config, index),
        norm_heads=True,
        bias=config.get("attention_bias", False),
    )
    if has_experts(config, index):
        return PreNormLayer(name, spec, attention, experts(f"{name}.mlp", spec, checkpoint))
    return PreNormLayer(name, spec, attention, dense(f"{name}.mlp", spec))


def has_experts(config: Mapping[str, Any], index: int) -> bool:
    """Every ``decoder_sparse_step``-th layer has, but for those in ``mlp_only_layers``."""
    if index in (config.get("mlp_only_layers") or ()):
        return False
    return num_experts_of(config) > 0 and (index + 1) % config.get("decoder_sparse_step", 1) == 0


def num_experts_of(config: Mapping[str, Any]) -> int:
    """Experts of a layer, as published checkpoints or Transformers since 5.0 name their number."""
    return int(config["num_experts"] if "num_experts" in config else config["num_local_experts"])


def experts(name: str, spec: ModelSpec, checkpoint: StackedTensors | None = None) -> MoE:
    """The chosen experts' weights sum to one only with ``norm_topk_prob``."""
    config = spec.config
    return MoE(
        name,
        config["hidden_size"],
        config["moe_intermediate_size"],
        routing=Routing(
            num_experts=num_experts_of(config),
            chosen=config["num_experts_per_tok"],
            renormalize=config.get("norm_topk_prob", False),
        ),
        activation=config.get("hidden_act", "silu"),
        checkpoint=checkpoint,
        spec=spec,
    )


def dense(name: str, spec: ModelSpec) -> GatedMLP:
    """As wide as ``intermediate_size`` says, which is no expert's width."""
    config = spec.config
    return GatedMLP(
        name,
        config["hidden_size"],
        config["intermediate_size"],
        activation=config.get("hidden_act", "silu"),
        bias=False,
        spec=spec,
    )
