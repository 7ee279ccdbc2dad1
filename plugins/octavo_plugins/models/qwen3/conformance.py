"""The configurations of Qwen 3 that the conformance kit tries, and what is switched off."""

from functools import partial
from typing import Any

from octavo.testing.variants import Variant


def leave_out_head_norm(model: Any, which: str) -> None:
    """Turn queries or keys as they are."""
    for layer in model.model.layers.values():
        setattr(layer.self_attn.attention, which, None)


VARIANTS = {
    "norms of heads, own head size": Variant(
        config={"head_dim": 24},
        without={
            "norm of queries": partial(leave_out_head_norm, which="q_norm_D"),
            "norm of keys": partial(leave_out_head_norm, which="k_norm_D"),
        },
    ),
    "tied, biases, a window on the last layer": Variant(
        config={
            "head_dim": 16,
            "num_hidden_layers": 3,
            "tie_word_embeddings": True,
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 20,
            "max_window_layers": 2,
        },
        without={"full layer": {"layer_types": ["sliding_attention"] * 3}},
    ),
}
