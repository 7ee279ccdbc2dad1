"""DeepSeek V2 and V3: latent attention, experts in groups, experts that all tokens share.

Axis suffixes: H heads, P rotated entries of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from octavo.errors import ModelError
from octavo.layers.decoder import CausalLM, PreNormLayer
from octavo.layers.latent_attention import LatentAttention
from octavo.layers.linear import Linear
from octavo.layers.mlp import GatedMLP
from octavo.layers.moe import MoE, Routing
from octavo.layers.rotary import RotaryEmbedding, rope_parameters, yarn_magnitude
from octavo_registry.layer_adapters import LayerAdapters
from octavo_registry.model import ModelSpec

EXPECTED: Mapping[str, Mapping[str, tuple[object, ...]]] = {
    "DeepseekV2ForCausalLM": {
        "scoring_func": ("softmax",),
        "topk_method": ("greedy", "group_limited_greedy"),
        "norm_topk_prob": (False,),
        "moe_layer_freq": (1,),
    },
    "DeepseekV3ForCausalLM": {
        "scoring_func": ("sigmoid",),
        "topk_method": ("noaux_tc",),
        "moe_layer_freq": (1,),
    },
}
"""Entries of config.json that may be left out, and the values that these models have for them."""


class Deepseek(CausalLM):
    """What both versions share: all but the choice of experts."""

    def __init__(self, spec: ModelSpec, routing: Callable[[Mapping[str, Any]], Routing]) -> None:
        config = spec.config
        for name, values in EXPECTED[spec.architecture].items():
            if config.get(name, values[0]) not in values:
                raise ModelError(
                    f"{name}={config[name]!r} in config.json is not known for "
                    f"{spec.architecture}; known: {', '.join(map(repr, values))}"
                )
        self._config = config
        rotary = RotaryEmbedding(config["qk_rope_head_dim"], spec=spec)
        super().__init__(spec, partial(decoder_layer, routing=routing), rotary)
        if config.get("rope_interleave", True):
            self._reorder(spec.adapters)

    def _reorder(self, adapters: LayerAdapters | None) -> None:
        """Let rotated entries turn in pairs (i, i + P / 2) instead of neighbours.

        Queries and keys are reordered alike, which leaves their products as they are.
        """
        head_dims, rotary_dim = rotated_head_dims(self._config), self._config["qk_rope_head_dim"]
        for module in (each for each in self.modules() if isinstance(each, Linear)):
            for name, part in module.parts:
                head_dim = head_dims.get(name.rpartition(".")[2])
                if head_dim is not None:
                    order_O = in_halves(part.total, head_dim, rotary_dim)
                    module.reorder(name, order_O)
                    if adapters is not None:
                        adapters.reorder(name, order_O)

    def is_not_needed(self, name: str) -> bool:
        """So are the layers behind the last one, which predict tokens further ahead."""
        extra = self._config.get("num_nextn_predict_layers") or 0
        first = self.stage.num_layers
        behind = tuple(f"model.layers.{i}." for i in range(first, first + extra))
        return super().is_not_needed(name) or (bool(behind) and name.startswith(behind))


class DeepseekV2(Deepseek):
    """DeepseekV2ForCausalLM."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec, routing_v2)


class DeepseekV3(Deepseek):
    """DeepseekV3ForCausalLM."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec, routing_v3)


def routing_v2(config: Mapping[str, Any]) -> Routing:
    """Softmax weights as they are; groups rank by their best expert."""
    is_grouped = config.get("topk_method") == "group_limited_greedy"
    return Routing(
        num_experts=config["n_routed_experts"],
        chosen=config["num_experts_per_tok"],
        renormalize=False,
        groups=(config["n_group"], config["topk_group"]) if is_grouped else None,
        scale=config.get("routed_scaling_factor", 1.0),
        router_in_float32=True,
    )


def routing_v3(config: Mapping[str, Any]) -> Routing:
    """Sigmoid weights, and a bias for the choice; groups rank by their best two experts."""
    return Routing(
        num_experts=config["n_routed_experts"],
        chosen=config["num_experts_per_tok"],
        score="sigmoid",
        renormalize=config.get("norm_topk_prob", True),
        groups=(config.get("n_group") or 1, config.get("topk_group") or 1),
        scale=config.get("routed_scaling_factor", 2.5),
        router_in_float32=True,
        choice_bias="gate.e_score_correction_bias",
    )


def decoder_layer(
    spec: ModelSpec, index: int, *, routing: Callable[[Mapping[str, Any]], Routing]
) -> PreNormLayer:
    """A dense layer, or one with experts behind the first ``first_k_dense_replace``."""
    config, name = spec.config, f"model.layers.{index}"
    attention = LatentAttention(f"{name}.self_attn", spec, scale=scale_of(config))
    if index < config.get("first_k_dense_replace", 0):
        return PreNormLayer(
            name, spec, attention, mlp(f"{name}.mlp", config["intermediate_size"], spec)
        )
    size, num_shared = config["moe_intermediate_size"], config.get("n_shared_experts") or 0
    experts = MoE(
        f"{name}.mlp",
        config["hidden_size"],
        size,
        routing=routing(config),
        activation=config.get("hidden_act", "silu"),
        shared=mlp(f"{name}.mlp.shared_experts", num_shared * size, spec) if num_shared else None,
        spec=spec,
    )
    return PreNormLayer(name, spec, attention, experts)


def mlp(name: str, size: int, spec: ModelSpec) -> GatedMLP:
    """Experts that all tokens share are one MLP of their common width."""
    config = spec.config
    return GatedMLP(
        name,
        config["hidden_size"],
        size,
        activation=config.get("hidden_act", "silu"),
        bias=config.get("mlp_bias", False),
        spec=spec,
    )


def scale_of(config: Mapping[str, Any]) -> float:
    """Factor of scores by a query's length; yarn with ``mscale_all_dim`` sharpens the softmax."""
    scale = float((config["qk_nope_head_dim"] + config["qk_rope_head_dim"]) ** -0.5)
    rope = rope_parameters(config)
    weight = rope.get("mscale_all_dim")
    if rope["rope_type"] == "default" or not weight:
        return scale
    return scale * yarn_magnitude(float(rope["factor"]), float(weight)) ** 2


def rotated_head_dims(config: Mapping[str, Any]) -> Mapping[str, int]:
    """A head's outputs, by the linears whose outputs end with rotated entries."""
    query_dim = config["qk_nope_head_dim"] + config["qk_rope_head_dim"]
    key_dim = config["kv_lora_rank"] + config["qk_rope_head_dim"]
    return {"q_proj": query_dim, "q_b_proj": query_dim, "kv_a_proj_with_mqa": key_dim}


def in_halves(num_outputs: int, head_dim: int, rotary_dim: int) -> Tensor:
    """The order of outputs that puts the even ones of each head's last ``rotary_dim`` first."""
    heads_HD = torch.arange(num_outputs, device="cpu").unflatten(0, (-1, head_dim))
    turned_HP = heads_HD[:, head_dim - rotary_dim :]
    halves_HP = turned_HP.unflatten(1, (-1, 2)).transpose(1, 2).flatten(1, 2)
    return torch.cat((heads_HD[:, : head_dim - rotary_dim], halves_HP), dim=1).flatten()
