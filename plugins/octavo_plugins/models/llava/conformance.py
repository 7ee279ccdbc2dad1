"""What the conformance kit tries LLaVA with."""

from __future__ import annotations

from octavo.testing.media_items import picture
from octavo.testing.variants import TINY_TEXT, TINY_VISION, MediaExample, Variant

IMAGE = 150
CONFIG = {"text_config": TINY_TEXT, "vision_config": TINY_VISION, "image_token_index": IMAGE}
VARIANTS = {
    "patches": Variant(config=CONFIG, media={"image": MediaExample(tokens=(IMAGE,), make=picture)}),
    "patches and the class token": Variant(
        config={**CONFIG, "vision_feature_select_strategy": "full"},
        media={"image": MediaExample(tokens=(IMAGE,), make=picture)},
    ),
}
