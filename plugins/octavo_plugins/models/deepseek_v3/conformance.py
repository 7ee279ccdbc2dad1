"""The configurations of DeepSeek V2 and V3 that the conformance kit tries."""

from dataclasses import replace
from typing import Any

from octavo.testing.variants import Variant


def leave_out_shared_experts(model: Any) -> None:
    """Let the chosen experts stand alone."""
    for layer in layers_with_experts(model):
        layer.mlp.shared_experts = None


def choose_without_bias(model: Any) -> None:
    """Let scores alone choose."""
    for layer in layers_with_experts(model):
        layer.mlp.choice_bias.data.zero_()


def choose_from_all_groups(model: Any) -> None:
    """Let the best experts be chosen wherever they are."""
    for layer in layers_with_experts(model):
        layer.mlp.routing = replace(layer.mlp.routing, groups=None)


def leave_out_keys_of_heads(model: Any) -> None:
    """Let queries meet nothing but the rotated part of keys."""
    for layer in model.model.layers.values():
        attention = layer.self_attn
        attention.kv_b_proj.data[:, : attention.plain_dim] = 0.0


def leave_out_rotation(model: Any) -> None:
    """Let every position look like the first."""
    model.model.rotary.forward = lambda positions: tuple(
        table.index_select(0, positions * 0) for table in model.model.rotary._table_P2F.unbind(1)
    )


def layers_with_experts(model: Any) -> list[Any]:
    """All but the dense ones."""
    return [layer for layer in model.model.layers.values() if hasattr(layer.mlp, "routing")]


LATENT = {
    "num_hidden_layers": 3,
    "num_key_value_heads": 4,
    "kv_lora_rank": 40,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 8.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 0.7,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 32,
}
OF_BOTH = {
    "keys of heads": leave_out_keys_of_heads,
    "rotation": leave_out_rotation,
    "shared experts": leave_out_shared_experts,
}

V2_VARIANTS = {
    "queries as they are, experts anywhere": Variant(
        config={**LATENT, "q_lora_rank": None, "n_shared_experts": 2},
        without=OF_BOTH,
    ),
    "compressed queries, experts in groups, yarn": Variant(
        config={
            **LATENT,
            "q_lora_rank": 24,
            "n_shared_experts": 1,
            "topk_method": "group_limited_greedy",
            "num_experts_per_tok": 3,  # the best two are always in the best two groups
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 4.0,
            "attention_bias": True,
            "rope_parameters": YARN,
        },
        without={
            "choice of groups": {"topk_method": "greedy"},
            "scale of experts": {"routed_scaling_factor": 1.0},
            "mscale of all entries": {"rope_parameters": {**YARN, "mscale_all_dim": 0.0}},
        },
    ),
}

V3_VARIANTS = {
    "experts in groups with a bias for the choice, yarn": Variant(
        config={
            **LATENT,
            "q_lora_rank": 24,
            "n_group": 4,
            "topk_group": 2,
            "rope_parameters": YARN,
        },
        without={
            **OF_BOTH,
            "choice of groups": choose_from_all_groups,
            "bias for the choice": choose_without_bias,
            "renormalisation of weights": {"norm_topk_prob": False},
            "scale of experts": {"routed_scaling_factor": 1.0},
            "mscale of all entries": {"rope_parameters": {**YARN, "mscale_all_dim": 0.0}},
        },
    ),
    "halves instead of pairs, queries as they are": Variant(
        config={
            **LATENT,
            "q_lora_rank": None,
            "n_group": 1,
            "topk_group": 1,
            "rope_interleave": False,
            "attention_bias": True,
        },
        without={"order of rotated entries": {"rope_interleave": True}},
    ),
}
