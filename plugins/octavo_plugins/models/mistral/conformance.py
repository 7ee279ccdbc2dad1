"""The configurations of Mistral and Ministral that the conformance kit tries."""

from octavo.testing.variants import Variant

VARIANTS = {
    "a window on every layer": Variant(),
    "tied, no window, own head size": Variant(
        config={"sliding_window": None, "head_dim": 24, "tie_word_embeddings": True}
    ),
}
MINISTRAL_VARIANTS = {
    "windows on some layers": Variant(
        config={
            "num_hidden_layers": 3,
            "head_dim": 24,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
        without={
            "full layer": {"layer_types": ["sliding_attention"] * 3},
            "pattern of windows": {
                "layer_types": ["full_attention", "sliding_attention", "full_attention"]
            },
        },
    ),
}
