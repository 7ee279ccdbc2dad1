"""What the conformance kit tries Qwen2-VL with."""

from __future__ import annotations

from octavo.testing.media_items import clip, picture
from octavo.testing.variants import TINY_TEXT, MediaExample, Variant

START, END, IMAGE, VIDEO = 148, 149, 150, 151
TOKENS = {
    "image_token_id": IMAGE,
    "video_token_id": VIDEO,
    "vision_start_token_id": START,
    "vision_end_token_id": END,
}
ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
LIMITS = {"min_pixels": 28 * 28 * 4, "max_pixels": 28 * 28 * 8}
MEDIA = {
    "image": MediaExample(tokens=(START, IMAGE, END), make=picture),
    "video": MediaExample(tokens=(START, VIDEO, END), make=clip),
}
VARIANT = Variant(
    config={
        "text_config": {**TINY_TEXT, "rope_parameters": ROPE, "tie_word_embeddings": False},
        "vision_config": {
            "depth": 2,
            "embed_dim": 32,
            "hidden_size": 64,
            "num_heads": 2,
            "mlp_ratio": 2,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        },
        **TOKENS,
    },
    media=MEDIA,
    files={"preprocessor_config.json": LIMITS},
)
VARIANTS = {"images and videos": VARIANT}
