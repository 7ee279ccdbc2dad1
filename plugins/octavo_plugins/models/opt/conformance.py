"""The configurations of OPT that the conformance kit tries, and what is switched off."""

from typing import Any

from torch import nn

from octavo.testing.variants import Variant

SIZES = {"ffn_dim": 96}


def leave_out_offset(model: Any) -> None:
    """Take the rows of the position embedding from the first one on, as other models do."""
    weight = model.decoder.embed_positions.weight.data
    weight.copy_(weight.roll(2, 0))


def leave_out_positions(model: Any) -> None:
    """Add nothing for positions."""
    model.decoder.embed_positions.weight.data.zero_()


def leave_out_biases(model: Any) -> None:
    """Take all linears without their biases."""
    for name, parameter in model.named_parameters():
        if name.endswith(".bias") and "norm" not in name:
            parameter.data.zero_()


def leave_out_norm_biases(model: Any) -> None:
    """Take layer norms without their biases."""
    for name, parameter in model.named_parameters():
        if name.endswith("norm.bias"):
            parameter.data.zero_()


def untie(model: Any) -> None:
    """Give the head the embedding's rows in another order."""
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.flip(0))


VARIANTS = {
    "norms before, tied": Variant(
        config=SIZES,
        without={
            "offset of positions": leave_out_offset,
            "embedding of positions": leave_out_positions,
            "bias of linears": leave_out_biases,
            "bias of norms": leave_out_norm_biases,
            "tie of embeddings": untie,
            "relu": {"activation_function": "gelu"},
        },
    ),
    "norms behind, narrow embedding": Variant(
        config={**SIZES, "do_layer_norm_before": False, "word_embed_proj_dim": 48}
    ),
    "untied, gelu, no biases, plain norms": Variant(
        config={
            **SIZES,
            "tie_word_embeddings": False,
            "activation_function": "gelu",
            "enable_bias": False,
            "layer_norm_elementwise_affine": False,
        }
    ),
}
