"""Where a prompt's images stand for Gemma 3, and the pixels that its encoder takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from octavo.errors import PromptError
from octavo.inputs.media import expand_placeholders, pixel_scale
from octavo_plugins.models.llava.inputs import stacked
from octavo_registry.modalities import MediaItem, MediaPrompt, MediaSettings

if TYPE_CHECKING:
    from torch import Tensor

BEGIN, END, IMAGE = 255_999, 256_000, 262_144
GREY = (0.5, 0.5, 0.5)
LONGEST_BREAK = 31
"""Newlines that the tokenizer has as one token."""


def place_images(prompt: MediaPrompt, settings: MediaSettings) -> MediaPrompt:
    """Each image token becomes as many as an image has rows.

    A prompt without any, as chat templates make it, has begin tokens only, which become whole
    images: between begin and end, with empty lines around.
    """
    config = settings.config
    image = config.get("image_token_index", IMAGE)
    if image not in prompt.token_ids:
        prompt = replace(prompt, token_ids=framed(prompt.token_ids, settings))
    counts = [config.get("mm_tokens_per_image", 256)] * len(prompt.media)
    return expand_placeholders(prompt, {"image": image}, counts)


def framed(token_ids: Sequence[int], settings: MediaSettings) -> list[int]:
    """Begin tokens as whole images; newlines beside them are joined as the tokenizer would."""
    config = settings.config
    begin, end, image = (
        config.get("boi_token_index", BEGIN),
        config.get("eoi_token_index", END),
        config.get("image_token_index", IMAGE),
    )
    breaks: dict[int, int] = {}
    if begin in token_ids:
        for count in range(1, LONGEST_BREAK + 1):
            ids = settings.text_ids("\n" * count)
            if len(ids) == 1:
                breaks[ids[0]] = count
    framed_ids: list[int] = []
    newlines = 0
    for token in token_ids:
        if token in breaks:
            newlines += breaks[token]
        elif token == begin:
            framed_ids += [*settings.text_ids("\n" * (newlines + 2)), begin, image, end]
            newlines = 2
        else:
            framed_ids += [*(settings.text_ids("\n" * newlines) if newlines else ()), token]
            newlines = 0
    return framed_ids + (settings.text_ids("\n" * newlines) if newlines else [])


def pixels(modality: str, item: MediaItem, settings: MediaSettings) -> Mapping[str, Tensor]:
    """The whole image, as a square."""
    from PIL import Image

    if settings.entry(modality, "do_pan_and_scan", False):
        raise PromptError(
            "do_pan_and_scan=True of the model's folder: an image is taken whole only"
        )
    size = settings.config["vision_config"]["image_size"]
    square = item.value.resize((size, size), Image.Resampling.BILINEAR)
    return {"pixels": stacked([square]), "scale": pixel_scale(settings, modality, GREY, GREY)}
