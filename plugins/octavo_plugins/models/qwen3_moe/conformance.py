"""The configurations of Qwen3 with experts that the conformance kit tries."""

from functools import partial

from octavo.testing.variants import Variant
from octavo_plugins.models.qwen3.conformance import leave_out_head_norm

EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "head_dim": 24}

VARIANTS = {
    "experts on every layer": Variant(
        config={**EXPERTS, "norm_topk_prob": True},
        without={
            "renormalisation of weights": {"norm_topk_prob": False},
            "norm of queries": partial(leave_out_head_norm, which="q_norm_D"),
            "norm of keys": partial(leave_out_head_norm, which="k_norm_D"),
        },
    ),
    "dense layers among them, a window": Variant(
        config={
            **EXPERTS,
            "num_hidden_layers": 5,
            "decoder_sparse_step": 2,
            "mlp_only_layers": [3],
            "use_sliding_window": True,
            "sliding_window": 20,
            "attention_bias": True,
        },
    ),
}
