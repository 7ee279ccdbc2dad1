"""The configurations of Gemma 2 that the conformance kit tries, and what is switched off."""

from typing import Any

from octavo.layers.norm import RMSNorm
from octavo.testing.variants import Variant


def leave_out_ones(model: Any) -> None:
    """Take the weights of norms as they stand in the checkpoint."""
    for module in model.modules():
        if isinstance(module, RMSNorm):
            module.weight.data.sub_(1.0)


def leave_out_norms_behind(model: Any) -> None:
    """Add what attention and MLP give to the residual stream as it is."""
    for layer in model.model.layers.values():
        for norm in (layer.post_attention_layernorm, layer.post_feedforward_layernorm):
            norm.forward = lambda x: x


def leave_out_embedding_scale(model: Any) -> None:
    """Take embeddings as they stand in the checkpoint."""
    model.embedding_scale = None


VARIANTS = {
    "soft caps and a window on every other layer": Variant(
        config={
            "num_hidden_layers": 3,
            "head_dim": 24,
            "query_pre_attn_scalar": 16,
            "attn_logit_softcapping": 4.0,
            "final_logit_softcapping": 8.0,
        },
        without={
            "soft cap of scores": {"attn_logit_softcapping": None},
            "soft cap of logits": {"final_logit_softcapping": None},
            "scale of queries": {"query_pre_attn_scalar": 24},
            "window pattern": {
                "layer_types": ["full_attention", "sliding_attention", "full_attention"]
            },
            "one in the weight of norms": leave_out_ones,
            "norm behind each sublayer": leave_out_norms_behind,
            "scale of embeddings": leave_out_embedding_scale,
        },
    ),
    "untied, no soft caps": Variant(
        config={
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            "tie_word_embeddings": False,
        }
    ),
}
