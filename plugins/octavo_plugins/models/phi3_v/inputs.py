"""Where a prompt's images stand for Phi 3.5 vision, and the pixels that its encoder takes.

A place is the token <|image|>, for each image in order, or a text such as <|image_2|>.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from octavo.errors import PromptError
from octavo.inputs.media import expand_placeholders, pixel_scale
from octavo_plugins.models.llava.inputs import MEAN, STD, stacked
from octavo_plugins.models.phi3_v import MARKS
from octavo_registry.modalities import MediaItem, MediaPrompt, MediaSettings

if TYPE_CHECKING:
    from torch import Tensor

IMAGE = 32044
CLIP_LARGE = {
    "model_type": "clip_vision_model",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 336,
    "patch_size": 14,
}
"""The tower that config.json only names."""


def tower_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """``img_processor``, with what it leaves to the name."""
    return {**CLIP_LARGE, **config.get("img_processor", {})}


def place_images(prompt: MediaPrompt, settings: MediaSettings) -> MediaPrompt:
    """Squares of four patches and ends of rows: of all tiles, and of the whole behind a border."""
    vision = tower_config(settings.config)
    half = vision["image_size"] // vision["patch_size"] // 2
    counts = []
    for item in prompt.media:
        _, _, height, width = item.tensors["pixels"].shape
        down, across = height // vision["image_size"], width // vision["image_size"]
        tiles = down * half * (across * half + 1)
        counts.append(tiles + 1 + half * (half + 1))
    token = settings.config.get("image_token_id", IMAGE)
    order = named_order(prompt, settings)
    if not order:
        return expand_placeholders(prompt, {"image": token}, counts)
    marks = {settings.token_ids[mark] for mark in MARKS}
    in_order = MediaPrompt(
        token_ids=[token if each in marks else each for each in prompt.token_ids],
        media=[prompt.media[item] for item in order],
    )
    placed = expand_placeholders(in_order, {"image": token}, [counts[item] for item in order])
    places = [replace(each, item=order[each.item]) for each in placed.placeholders]
    return replace(placed, media=prompt.media, placeholders=places)


def named_order(prompt: MediaPrompt, settings: MediaSettings) -> list[int]:
    """The items in the order of their places, where these have numbers; else none."""
    numbers = {settings.token_ids.get(mark): number for number, mark in enumerate(MARKS)}
    order = [numbers[token] for token in prompt.token_ids if token in numbers]
    if order and sorted(order) != list(range(len(prompt.media))):
        named = ", ".join(MARKS[number] for number in order)
        raise PromptError(
            f"the prompt has {named} for {len(prompt.media)} images; name each once, from 1"
        )
    return order


def pixels(modality: str, item: MediaItem, settings: MediaSettings) -> Mapping[str, Tensor]:
    """The image on white, as large as so many tiles allow; the device cuts it."""
    from PIL import Image

    tile = tower_config(settings.config)["image_size"]
    most = settings.entry(modality, "num_crops", 4)
    image: Image.Image = item.value
    is_upright = image.width < image.height
    if is_upright:  # as it would be lying
        image = image.transpose(Image.Transpose.TRANSPOSE)
    ratio = image.width / image.height
    across = 1
    while (across + 1) * math.ceil((across + 1) / ratio) <= most:
        across += 1
    width = across * tile
    height = max(1, int(width / ratio))
    white = Image.new("RGB", (width, math.ceil(height / tile) * tile), "white")
    resized = image.resize((width, height), Image.Resampling.BILINEAR)
    white.paste(resized, (0, (white.height - height) // 2))
    if is_upright:
        white = white.transpose(Image.Transpose.TRANSPOSE)
    return {"pixels": stacked([white]), "scale": pixel_scale(settings, modality, MEAN, STD)}
