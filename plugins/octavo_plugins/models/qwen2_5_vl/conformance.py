"""What the conformance kit tries Qwen2.5-VL with."""

from __future__ import annotations

from octavo.testing.variants import TINY_TEXT, Variant
from octavo_plugins.models.qwen2_vl.conformance import LIMITS, MEDIA, ROPE, TOKENS

VARIANT = Variant(
    config={
        "text_config": {**TINY_TEXT, "rope_parameters": ROPE, "tie_word_embeddings": False},
        "vision_config": {
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 48,
            "out_hidden_size": 64,
            "num_heads": 2,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "window_size": 56,
            "fullatt_block_indexes": [1],
        },
        **TOKENS,
    },
    media=MEDIA,
    files={"preprocessor_config.json": LIMITS},
)
VARIANTS = {"images and videos": VARIANT}
