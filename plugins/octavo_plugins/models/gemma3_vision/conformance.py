"""What the conformance kit tries Gemma 3 with images with."""

from __future__ import annotations

from octavo.testing.media_items import picture
from octavo.testing.variants import TINY_TEXT, TINY_VISION, MediaExample, Variant

BEGIN, END, IMAGE = 148, 149, 150
PLAIN = {"rope_type": "default"}
VARIANT = Variant(
    config={
        "text_config": {
            **TINY_TEXT,
            "num_hidden_layers": 3,
            "head_dim": 16,
            "query_pre_attn_scalar": 16,
            "sliding_window": 20,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "rope_parameters": {
                "sliding_attention": {**PLAIN, "rope_theta": 10000.0},
                "full_attention": {**PLAIN, "rope_theta": 100000.0},
            },
        },
        "vision_config": {**TINY_VISION, "image_size": 48, "patch_size": 8},
        "mm_tokens_per_image": 9,
        "boi_token_index": BEGIN,
        "eoi_token_index": END,
        "image_token_index": IMAGE,
    },
    media={"image": MediaExample(tokens=(BEGIN, IMAGE, END), make=picture)},
)
VARIANTS = {"images that see all of themselves": VARIANT}
