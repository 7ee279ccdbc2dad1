"""The configurations of Mamba 2 that the conformance kit tries, and what is switched off."""

from typing import Any

from octavo.testing.variants import EPSILON, Variant


def leave_out_decays(model: Any) -> None:
    """Let states stay as they are but for what is added."""
    for layer in model.backbone.layers.values():
        layer.mixer.A_log.weight.data.fill_(-30.0)


def leave_out_skips(model: Any) -> None:
    """Give what states hold alone."""
    for layer in model.backbone.layers.values():
        layer.mixer.D.weight.data.zero_()


def leave_out_taps(model: Any) -> None:
    """Let the convolution see the token alone."""
    for layer in model.backbone.layers.values():
        layer.mixer.conv1d.weight.data[..., :-1] = 0


def leave_out_conv_biases(model: Any) -> None:
    """Take convolutions without their biases."""
    for layer in model.backbone.layers.values():
        layer.mixer.conv1d.bias.data.zero_()


SIZES = {
    "num_heads": 8,
    "head_dim": 16,
    "state_size": 16,
    "n_groups": 2,
    "chunk_size": 16,
    "layer_norm_epsilon": EPSILON,
}
VARIANTS = {
    "groups of heads": Variant(
        config=SIZES,
        without={
            "decay": leave_out_decays,
            "skip": leave_out_skips,
            "convolution": leave_out_taps,
            "bias of the convolution": leave_out_conv_biases,
        },
    ),
    "tied, biases, one group, six taps": Variant(
        config={
            **SIZES,
            "n_groups": 1,
            "conv_kernel": 6,
            "use_bias": True,
            "tie_word_embeddings": True,
        }
    ),
}
