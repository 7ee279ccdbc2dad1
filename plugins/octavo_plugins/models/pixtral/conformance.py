"""What the conformance kit tries Pixtral's images with."""

from __future__ import annotations

from octavo.testing.media_items import picture
from octavo.testing.variants import TINY_TEXT, TINY_VISION, MediaExample, Variant

BREAK, END, IMAGE = 148, 149, 150
NAMES = {BREAK: "[IMG_BREAK]", END: "[IMG_END]", IMAGE: "[IMG]"}
VARIANT = Variant(
    config={
        "model_type": "mistral3",
        "text_config": {**TINY_TEXT, "model_type": "mistral", "sliding_window": None},
        "vision_config": {
            **TINY_VISION,
            "model_type": "pixtral",
            "image_size": 40,
            "patch_size": 4,
        },
        "image_token_index": IMAGE,
        "tie_word_embeddings": False,
    },
    media={"image": MediaExample(tokens=(IMAGE,), make=picture)},
    files={
        "preprocessor_config.json": {"size": {"longest_edge": 40}},
        "tokenizer_config.json": {
            "added_tokens_decoder": {str(id): {"content": name} for id, name in NAMES.items()}
        },
    },
)
VARIANTS = {"rows apart": VARIANT}
