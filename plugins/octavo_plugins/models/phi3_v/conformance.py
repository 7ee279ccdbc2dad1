"""What the conformance kit tries Phi 3.5 vision with."""

from __future__ import annotations

from octavo.testing.media_items import picture
from octavo.testing.variants import TINY_TEXT, TINY_VISION, MediaExample, Variant

IMAGE = 150
VARIANT = Variant(
    config={
        **TINY_TEXT,
        "image_token_id": IMAGE,
        "img_processor": TINY_VISION,
        "tie_word_embeddings": False,
    },
    media={"image": MediaExample(tokens=(IMAGE,), make=picture)},
    files={"preprocessor_config.json": {"num_crops": 4}},
)
VARIANTS = {"tiles": VARIANT}
