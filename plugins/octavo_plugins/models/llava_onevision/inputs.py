"""Where media stand in prompts of LLaVA-OneVision, and the pixels that its encoder takes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from octavo.inputs.frames import resized_frames
from octavo.inputs.media import expand_placeholders, frames_asked, pixel_scale
from octavo_plugins.models.llava.inputs import MEAN, STD, media_token
from octavo_plugins.models.llava_next.canvas import Size, tiles
from octavo_registry.modalities import MediaItem, MediaPrompt, MediaSettings

if TYPE_CHECKING:
    from torch import Tensor

CANVASES = [(384 * down, 384 * across) for down in range(1, 7) for across in range(1, 7)]
MOST_TILES = "anyres_max_9"
NUM_FRAMES = 32
"""Frames of a video where nobody says how many."""


def place_media(prompt: MediaPrompt, settings: MediaSettings) -> MediaPrompt:
    """Patches and ends of rows for an image; all frames' pooled patches and an end for a video."""
    vision = settings.config["vision_config"]
    side = vision["image_size"] // vision["patch_size"]
    counts = []
    for item in prompt.media:
        if item.modality == "video":
            counts.append(len(item.tensors["pixels"]) * math.ceil(side / 2) ** 2 + 1)
        else:
            size = item.tensors["layout"].tolist()[2:]
            rows, columns = pooled((size[0], size[1]), side, settings.config)
            counts.append(side**2 + rows * (columns + 1))
    tokens = {
        "image": media_token(settings, "image", 151646),
        "video": media_token(settings, "video", 151647),
    }
    return expand_placeholders(prompt, tokens, counts)


def pooled(patches: Size, side: int, config: Mapping[str, object]) -> Size:
    """What is left of an image's rows and columns of patches, of which there are only so many."""
    most = int(str(config.get("vision_aspect_ratio") or MOST_TILES).removeprefix("anyres_max_"))
    ratio = math.sqrt(patches[0] * patches[1] / (most * side**2))
    if ratio <= 1.1:
        return patches
    return int(patches[0] // ratio), int(patches[1] // ratio)


def decode_options(modality: str, settings: MediaSettings) -> dict[str, float]:
    """Frames of a video."""
    return frames_asked(modality, settings, num_frames=NUM_FRAMES)


def pixels(modality: str, item: MediaItem, settings: MediaSettings) -> Mapping[str, Tensor]:
    """Tiles of an image, each by itself also where a prompt has several; squares of frames."""
    if modality == "image":
        return tiles(item, settings, CANVASES)
    side = settings.config["vision_config"]["image_size"]
    frames = resized_frames(item.value, side, side).contiguous()
    return {"pixels": frames, "scale": pixel_scale(settings, modality, MEAN, STD)}
