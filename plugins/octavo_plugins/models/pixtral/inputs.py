"""Where a prompt's images stand for Pixtral and Mistral 3, and the pixels of their encoder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from octavo.inputs.media import expand_items, pixel_scale
from octavo_plugins.models.llava.inputs import MEAN, STD, media_token, stacked
from octavo_registry.modalities import MediaItem, MediaPrompt, MediaSettings

if TYPE_CHECKING:
    from torch import Tensor

BREAK, END = "[IMG_BREAK]", "[IMG_END]"


def place_images(prompt: MediaPrompt, settings: MediaSettings) -> MediaPrompt:
    """A token for each square of merged patches, a break after each row, an end after the last."""
    image = media_token(settings, "image", 10)
    step = step_of(settings)
    contents = []
    for item in prompt.media:
        line_break, end = settings.token_id(BREAK), settings.token_id(END)
        _, _, height, width = item.tensors["pixels"].shape
        rows = [*[image] * (width // step), line_break] * (height // step)
        contents.append([*rows[:-1], end])
    return expand_items(prompt, {"image": image}, contents)


def step_of(settings: MediaSettings) -> int:
    """Pixels of a side of what becomes one token; Mistral 3 merges squares of patches."""
    config = settings.config
    merge: int = (
        config.get("spatial_merge_size", 2) if config.get("model_type") == "mistral3" else 1
    )
    patch: int = config["vision_config"].get("patch_size", 16)
    return patch * merge


def pixels(modality: str, item: MediaItem, settings: MediaSettings) -> Mapping[str, Tensor]:
    """The whole image, made small enough for the longest side, and its sides full steps."""
    from PIL import Image

    vision, step = settings.config["vision_config"], step_of(settings)
    size = settings.entry(modality, "size", {})
    longest = size.get("longest_edge") or vision.get("image_size", 1024)
    width, height = item.value.size
    ratio = max(height / longest, width / longest)
    if ratio > 1:
        height, width = math.floor(height / ratio), math.floor(width / ratio)
    # A side that was cut to nothing still is one step.
    height, width = (max(1, math.ceil(side / step)) * step for side in (height, width))
    resized = item.value.resize((width, height), Image.Resampling.BICUBIC)
    return {
        "pixels": stacked([resized]),
        "scale": pixel_scale(settings, modality, MEAN, STD),
    }
