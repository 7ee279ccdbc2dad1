"""What the conformance kit tries LLaVA-NeXT with."""

from __future__ import annotations

from octavo.testing.media_items import picture
from octavo.testing.variants import TINY_TEXT, TINY_VISION, MediaExample, Variant

IMAGE = 150
VARIANT = Variant(
    config={
        "text_config": {**TINY_TEXT, "model_type": "mistral", "sliding_window": None},
        "vision_config": {**TINY_VISION, "image_size": 14},
        "image_token_index": IMAGE,
        "image_grid_pinpoints": [[14, 28], [28, 14], [28, 28]],
    },
    media={"image": MediaExample(tokens=(IMAGE,), make=picture)},
)
VARIANTS = {"tiles": VARIANT}
