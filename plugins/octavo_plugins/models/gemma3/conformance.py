"""The configurations of Gemma 3 that the conformance kit tries, and what is switched off."""

from functools import partial

from octavo.testing.variants import Variant
from octavo_plugins.models.gemma2.conformance import (
    leave_out_embedding_scale,
    leave_out_norms_behind,
    leave_out_ones,
)
from octavo_plugins.models.qwen3.conformance import leave_out_head_norm

FULL, SLIDING = "full_attention", "sliding_attention"
PLAIN = {"rope_type": "default"}


VARIANTS = {
    "norms of heads and two sets of angles": Variant(
        config={
            "num_hidden_layers": 3,
            "layer_types": [SLIDING, SLIDING, FULL],
            "head_dim": 24,
            "query_pre_attn_scalar": 16,
            "rope_parameters": {
                FULL: {"rope_type": "linear", "rope_theta": 1000.0, "factor": 4.0},
                SLIDING: {**PLAIN, "rope_theta": 100.0},
            },
        },
        without={
            "second theta": {
                "rope_parameters": {
                    FULL: {"rope_type": "linear", "rope_theta": 100.0, "factor": 4.0},
                    SLIDING: {**PLAIN, "rope_theta": 100.0},
                }
            },
            "window pattern": {"layer_types": [SLIDING, FULL, SLIDING]},
            "scale of queries": {"query_pre_attn_scalar": 24},
            "one in the weight of norms": leave_out_ones,
            "norm behind each sublayer": leave_out_norms_behind,
            "scale of embeddings": leave_out_embedding_scale,
            "norm of queries": partial(leave_out_head_norm, which="q_norm_D"),
            "norm of keys": partial(leave_out_head_norm, which="k_norm_D"),
        },
    ),
    "a soft cap of logits": Variant(
        config={"final_logit_softcapping": 8.0},
        without={"soft cap of logits": {"final_logit_softcapping": None}},
    ),
}
