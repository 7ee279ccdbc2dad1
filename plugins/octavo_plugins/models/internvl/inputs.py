"""Where a prompt's media stand for InternVL, and the tiles that its encoder takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from octavo.inputs.frames import resized_frames
from octavo.inputs.media import expand_items, frames_asked, pixel_scale
from octavo_plugins.models.llava.inputs import MEAN, STD, media_token, stacked
from octavo_registry.modalities import MediaItem, MediaPrompt, MediaSettings

if TYPE_CHECKING:
    from torch import Tensor

START, END, VIDEO = "<img>", "</img>", "<video>"
NUM_FRAMES = 32
"""Frames of a video where nobody says how many."""


def place_media(prompt: MediaPrompt, settings: MediaSettings) -> MediaPrompt:
    """A token for each square of merged patches, between a start and an end.

    An image is all its tiles together; each frame of a video stands by itself, behind its number.
    """
    image = media_token(settings, "image", 151667)
    tokens = {"image": image}
    if VIDEO in settings.token_ids or any(item.modality == "video" for item in prompt.media):
        tokens["video"] = settings.token_id(VIDEO)
    per_tile = rows_of_tile(settings.config)
    contents: list[list[int]] = []
    for item in prompt.media:
        start, end = settings.token_id(START), settings.token_id(END)
        num_tiles = len(item.tensors["pixels"])
        if item.modality == "image":
            contents.append([start, *[image] * (per_tile * num_tiles), end])
            continue
        frames: list[int] = []
        for number in range(1, num_tiles + 1):
            text = f"Frame{number}: " if number == 1 else f"\nFrame{number}: "
            frames += [*settings.text_ids(text), start, *[image] * per_tile, end]
        contents.append(frames)
    return expand_items(prompt, tokens, contents, place=image)


def decode_options(modality: str, settings: MediaSettings) -> dict[str, float]:
    """Frames of a video."""
    return frames_asked(modality, settings, num_frames=NUM_FRAMES)


def rows_of_tile(config: Mapping[str, Any]) -> int:
    """How many squares of patches a tile has."""
    vision = config["vision_config"]
    (height, width), (patch_height, patch_width) = sides(vision, "image_size"), patch_of(vision)
    num_patches = (height // patch_height) * (width // patch_width)
    return int(num_patches * config.get("downsample_ratio", 0.5) ** 2)


def sides(vision: Mapping[str, Any], name: str) -> tuple[int, int]:
    """Height and width of what a vision config says with one number or two."""
    size = vision.get(name, 448)
    return (size[0], size[1]) if isinstance(size, (list, tuple)) else (size, size)


def patch_of(vision: Mapping[str, Any]) -> tuple[int, int]:
    """Height and width of a patch."""
    return sides({"patch_size": 14, **vision}, "patch_size")


def tiling(
    height: int, width: int, tile: tuple[int, int], least: int, most: int
) -> tuple[int, int]:
    """Tiles down and across whose shape is nearest to the image's.

    Of equally near ones the larger counts, as long as the image fills over half of it.
    """
    tilings = sorted(
        (
            (down, across)
            for across in range(1, most + 1)
            for down in range(1, most + 1)
            if least <= down * across <= most
        ),
        key=lambda each: each[0] * each[1],
    )
    best, distance = (1, 1), float("inf")
    for down, across in tilings:
        away = abs(width / height - across / down)
        fills = 2 * height * width > tile[0] * tile[1] * down * across
        if away < distance or (away == distance and fills):
            best, distance = (down, across), away
    return best


def pixels(modality: str, item: MediaItem, settings: MediaSettings) -> Mapping[str, Tensor]:
    """Tiles row by row, and where there are several, the whole image as the last; or frames."""
    from PIL import Image

    image = item.value
    tile = sides(settings.config["vision_config"], "image_size")
    if modality == "video":
        frames = resized_frames(item.value, tile[1], tile[0]).contiguous()
        return {"pixels": frames, "scale": pixel_scale(settings, modality, MEAN, STD)}
    least = settings.entry(modality, "min_patches", 1)
    most = settings.entry(modality, "max_patches", 12)
    down, across = tiling(image.height, image.width, tile, least, most)
    height, width = tile
    resized = image.resize((across * width, down * height), Image.Resampling.BICUBIC)
    pieces = [
        resized.crop((left, top, left + width, top + height))
        for top in range(0, down * height, height)
        for left in range(0, across * width, width)
    ]
    if len(pieces) > 1:
        pieces.append(image.resize((width, height), Image.Resampling.BICUBIC))
    return {"pixels": stacked(pieces), "scale": pixel_scale(settings, modality, MEAN, STD)}
