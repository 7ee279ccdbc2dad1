"""What the conformance kit tries InternVL with."""

from __future__ import annotations

from octavo.testing.media_items import clip, picture
from octavo.testing.variants import TINY_TEXT, TINY_VISION, MediaExample, Variant

START, END, IMAGE, VIDEO = 148, 149, 150, 151
NAMES = {START: "<img>", END: "</img>", IMAGE: "<IMG_CONTEXT>", VIDEO: "<video>"}
VARIANT = Variant(
    config={
        "text_config": {**TINY_TEXT, "model_type": "qwen2"},
        "vision_config": {
            **TINY_VISION,
            "image_size": [16, 16],
            "patch_size": [4, 4],
            "attention_bias": True,
        },
        "image_token_id": IMAGE,
    },
    media={
        "image": MediaExample(tokens=(IMAGE,), make=picture),
        "video": MediaExample(tokens=(VIDEO,), make=clip),
    },
    files={
        "preprocessor_config.json": {"max_patches": 4},
        "tokenizer_config.json": {
            "added_tokens_decoder": {str(id): {"content": name} for id, name in NAMES.items()}
        },
    },
)
VARIANTS = {"tiles and frames": VARIANT}
