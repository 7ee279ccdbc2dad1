"""Where media stand in prompts of LLaVA-NeXT-Video, and the pixels that its encoder takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from octavo.inputs.frames import resized_frames
from octavo.inputs.media import expand_placeholders, frames_asked, pixel_scale
from octavo_plugins.models.llava.inputs import MEAN, STD, media_token, size_around
from octavo_plugins.models.llava_next.canvas import tiles
from octavo_plugins.models.llava_next.inputs import num_rows
from octavo_registry.modalities import MediaItem, MediaPrompt, MediaSettings

if TYPE_CHECKING:
    from torch import Tensor

NUM_FRAMES = 32
"""Frames of a video where nobody says how many."""


def place_media(prompt: MediaPrompt, settings: MediaSettings) -> MediaPrompt:
    """Images as LLaVA-NeXT has them; for a video the pooled patches of all frames."""
    vision = settings.config["vision_config"]
    side = vision["image_size"] // vision["patch_size"]
    per_frame = (side // settings.config.get("spatial_pool_stride", 2)) ** 2
    counts = [
        per_frame * len(item.tensors["pixels"])
        if item.modality == "video"
        else num_rows(item, settings)
        for item in prompt.media
    ]
    tokens = {
        "image": media_token(settings, "image", 32001),
        "video": media_token(settings, "video", 32000),
    }
    return expand_placeholders(prompt, tokens, counts)


def decode_options(modality: str, settings: MediaSettings) -> dict[str, float]:
    """Frames of a video."""
    return frames_asked(modality, settings, num_frames=NUM_FRAMES)


def pixels(modality: str, item: MediaItem, settings: MediaSettings) -> Mapping[str, Tensor]:
    """Tiles of an image; the middle squares of frames."""
    if modality == "image":
        return tiles(item, settings)
    side = settings.config["vision_config"]["image_size"]
    rows, columns = item.value.frames.shape[1:3]
    width, height = size_around(side, columns, rows)
    left, top = (width - side) // 2, (height - side) // 2
    frames = resized_frames(item.value, width, height)
    squares = frames[..., top : top + side, left : left + side].contiguous()
    return {"pixels": squares, "scale": pixel_scale(settings, modality, MEAN, STD)}
