"""The configurations of Qwen 2 that the conformance kit tries, and what is switched off."""

from typing import Any

from octavo.testing.variants import Variant


def leave_out_biases(model: Any) -> None:
    """Take queries, keys and values without their biases."""
    for layer in model.model.layers.values():
        layer.self_attn.qkv_proj.bias.data.zero_()


VARIANTS = {
    "biases on queries, keys and values": Variant(
        without={"bias of queries, keys and values": leave_out_biases}
    ),
    "tied, a window on the last layer": Variant(
        config={
            "num_hidden_layers": 3,
            "tie_word_embeddings": True,
            "use_sliding_window": True,
            "sliding_window": 20,
            "max_window_layers": 2,
        },
        without={"full layer": {"layer_types": ["sliding_attention"] * 3}},
    ),
}
