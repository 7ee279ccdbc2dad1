"""The configurations of GPT-2 that the conformance kit tries, and what is switched off."""

from typing import Any

from octavo.testing.variants import Variant


def leave_out_positions(model: Any) -> None:
    """Add nothing for positions."""
    model.transformer.wpe.weight.data.zero_()


def leave_out_biases(model: Any) -> None:
    """Take linears and norms without their biases."""
    for name, parameter in model.named_parameters():
        if name.endswith(".bias"):
            parameter.data.zero_()


VARIANTS = {
    "tied, four times the hidden size within": Variant(
        without={
            "embedding of positions": leave_out_positions,
            "bias": leave_out_biases,
            "tanh in gelu": {"activation_function": "gelu"},
            "scale of scores": {"scale_attn_weights": False},
        }
    ),
    "untied, scores scaled by layer": Variant(
        config={
            "tie_word_embeddings": False,
            "n_inner": 96,
            "scale_attn_by_inverse_layer_idx": True,
        },
        without={"scale by layer": {"scale_attn_by_inverse_layer_idx": False}},
    ),
}
