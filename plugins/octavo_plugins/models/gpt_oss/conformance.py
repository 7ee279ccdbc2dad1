"""The configurations of gpt-oss that the conformance kit tries, and what is switched off."""

from dataclasses import replace
from typing import Any

from octavo.testing.variants import Variant


def leave_out_sinks(model: Any) -> None:
    """Let a query's weights sum to one."""
    for layer in model.model.layers.values():
        layer.self_attn.attention.sinks = None


def choose_without_bias(model: Any) -> None:
    """Let the router's products alone choose."""
    for layer in model.model.layers.values():
        layer.mlp.router.bias.data.zero_()


def leave_out_expert_biases(model: Any) -> None:
    """Let the experts' products stand alone."""
    for layer in model.model.layers.values():
        layer.mlp.gate_up_bias.data.zero_()
        layer.mlp.down_bias.data.zero_()


def gate_as_others_do(model: Any) -> None:
    """Take silu(gate) * up for the activation."""
    for layer in model.model.layers.values():
        layer.mlp.activation = "silu"


def weigh_before_the_choice(model: Any) -> None:
    """Let the softmax go over all experts."""
    for layer in model.model.layers.values():
        layer.mlp.routing = replace(layer.mlp.routing, score="softmax", renormalize=False)


YARN = {
    "rope_type": "yarn",
    "rope_theta": 150.0,
    "factor": 8.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 32,
}

VARIANTS = {
    "sinks, yarn and a window on every other layer": Variant(
        config={
            "num_hidden_layers": 3,
            "head_dim": 24,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "rope_parameters": YARN,
        },
        without={
            "sinks": leave_out_sinks,
            "window pattern": {
                "layer_types": ["full_attention", "sliding_attention", "full_attention"]
            },
            "fractional border of yarn": {"rope_parameters": {**YARN, "truncate": True}},
            "bias of the router": choose_without_bias,
            "biases of experts": leave_out_expert_biases,
            "clamped gate": gate_as_others_do,
            "softmax behind the choice": weigh_before_the_choice,
        },
    ),
}
