"""The configurations of OLMo 2 that the conformance kit tries, and what is switched off."""

from typing import Any

from octavo.testing.variants import Variant


def leave_out(*path: str) -> Any:
    """What makes one norm of each layer pass on what it gets."""

    def change(model: Any) -> None:
        for layer in model.model.layers.values():
            norm = layer
            for name in path:
                norm = getattr(norm, name)
            norm.forward = lambda x: x

    return change


VARIANTS = {
    "norms of queries and keys, and behind sublayers": Variant(
        without={
            "norm of queries": leave_out("self_attn", "q_norm"),
            "norm of keys": leave_out("self_attn", "k_norm"),
            "norm behind attention": leave_out("post_attention_layernorm"),
            "norm behind the mlp": leave_out("post_feedforward_layernorm"),
        }
    ),
    "tied, biases, a key/value head for each head": Variant(
        config={"tie_word_embeddings": True, "attention_bias": True, "num_key_value_heads": 4}
    ),
}
