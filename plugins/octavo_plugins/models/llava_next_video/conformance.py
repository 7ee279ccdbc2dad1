"""What the conformance kit tries LLaVA-NeXT-Video with."""

from __future__ import annotations

from octavo.testing.media_items import clip, picture
from octavo.testing.variants import TINY_TEXT, TINY_VISION, MediaExample, Variant

IMAGE, VIDEO = 150, 151
VARIANT = Variant(
    config={
        "text_config": TINY_TEXT,
        "vision_config": {**TINY_VISION, "image_size": 14},
        "image_token_index": IMAGE,
        "video_token_index": VIDEO,
        "image_grid_pinpoints": [[14, 28], [28, 14], [28, 28]],
    },
    media={
        "image": MediaExample(tokens=(IMAGE,), make=picture),
        "video": MediaExample(tokens=(VIDEO,), make=clip),
    },
)
VARIANTS = {"tiles and frames": VARIANT}
