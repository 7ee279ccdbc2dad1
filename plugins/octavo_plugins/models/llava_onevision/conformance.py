"""What the conformance kit tries LLaVA-OneVision with."""

from __future__ import annotations

from octavo.testing.media_items import clip, picture
from octavo.testing.variants import TINY_TEXT, TINY_VISION, MediaExample, Variant

IMAGE, VIDEO = 150, 151
VARIANT = Variant(
    config={
        "text_config": {**TINY_TEXT, "model_type": "qwen2"},
        "vision_config": {**TINY_VISION, "image_size": 14, "model_type": "siglip_vision_model"},
        "image_token_index": IMAGE,
        "video_token_index": VIDEO,
        "image_grid_pinpoints": [[14 * down, 14 * side] for down in (1, 2) for side in (1, 2, 3)],
        "vision_aspect_ratio": "anyres_max_4",
    },
    media={
        "image": MediaExample(tokens=(IMAGE,), make=picture),
        "video": MediaExample(tokens=(VIDEO,), make=clip),
    },
    files={"preprocessor_config.json": {"size": {"height": 14, "width": 14}}},
)
VARIANTS = {"tiles and frames": VARIANT}
