"""Where a prompt's images stand for Pixtral and Mistral 3, and the pixels of their encoder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from octavo.errors import PromptError
from octavo.inputs.media import pixel_scale
from octavo_plugins.models.llava.inputs import MEAN, STD, media_token, stacked
from octavo_registry.modalities import MediaItem, MediaPrompt, MediaSettings, Placeholder

if TYPE_CHECKING:
    from torch import Tensor

BREAK, END = "[IMG_BREAK]", "[IMG_END]"


def place_images(prompt: MediaPrompt, settings: MediaSettings) -> MediaPrompt:
    """A token for each square of merged patches, a break after each row, an end after the last."""
    image = media_token(settings, "image", 10)
    line_break, end = settings.token_id(BREAK), settings.token_id(END)
    found = sum(token == image for token in prompt.token_ids)
    if found != len(prompt.media):
        raise PromptError(
            f"the prompt has {found} places for images, and there are {len(prompt.media)}"
        )
    token_ids: list[int] = []
    placeholders = []
    number = 0
    for token in prompt.token_ids:
        if token != image:
            token_ids.append(token)
            continue
        _, _, height, width = prompt.media[number].tensors["pixels"].shape
        step = step_of(settings)
        for _ in range(height // step):
            columns = width // step
            placeholders.append(Placeholder(item=number, start=len(token_ids), length=columns))
            token_ids += [image] * columns + [line_break]
        token_ids[-1] = end
        number += 1
    return MediaPrompt(token_ids=token_ids, media=prompt.media, placeholders=placeholders)


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
