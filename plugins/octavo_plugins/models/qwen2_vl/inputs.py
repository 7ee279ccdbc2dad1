"""Where media stand in prompts of Qwen2-VL, at which positions, and the patches of its encoder.

Axis suffixes: F frames, C channels, A axes (time, height, width), P tokens of the prompt.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from octavo.errors import PromptError
from octavo.inputs.media import expand_placeholders
from octavo_registry.modalities import MediaItem, MediaPrompt, MediaSettings, Placeholder

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

Grid = tuple[int, int, int]
"""Patches in time, height and width, before neighbours are merged."""
PIXELS = {"image": (56 * 56, 28 * 28 * 1280), "video": (128 * 28 * 28, 28 * 28 * 768)}
"""The least and the most of a picture, and of each frame."""


def place_media(prompt: MediaPrompt, settings: MediaSettings) -> MediaPrompt:
    """A token for each square of merged patches, with its place in time and space."""
    return placed_with(prompt, settings, [1.0] * len(prompt.media))


def placed_with(
    prompt: MediaPrompt, settings: MediaSettings, intervals: Sequence[float]
) -> MediaPrompt:
    """The same where a step in time of an item is so many positions."""
    merge = settings.config["vision_config"]["spatial_merge_size"]
    grids = grids_of(prompt)
    counts = [math.prod(grid) // merge**2 for grid in grids]
    placed = expand_placeholders(prompt, tokens_of(settings), counts)
    items = [each.item for each in placed.placeholders]
    return replace(
        placed,
        positions_AP=positions(
            len(placed.token_ids),
            placed.placeholders,
            [grids[item] for item in items],
            [intervals[item] for item in items],
            merge,
        ),
    )


def grids_of(prompt: MediaPrompt) -> list[Grid]:
    """Of the items, as ``patches`` has made them."""
    return [tuple(item.tensors["grid"].tolist()) for item in prompt.media]


def tokens_of(settings: MediaSettings) -> dict[str, int]:
    """The token that stands for an item, by modality."""
    return {
        "image": settings.config["image_token_id"],
        "video": settings.config["video_token_id"],
    }


def positions(
    num_tokens: int,
    placeholders: Sequence[Placeholder],
    grids: Sequence[Grid],
    intervals: Sequence[float],
    merge: int,
) -> NDArray[np.int32]:
    """Text goes on on all axes at once, from where the longest side of what was before it ends.

    ``grids`` and ``intervals`` are those of each placeholder.
    """
    result_AP = np.empty((3, num_tokens), np.int32)
    token = position = 0
    for each, (time, height, width), interval in zip(placeholders, grids, intervals, strict=True):
        text = each.start - token
        result_AP[:, token : each.start] = np.arange(position, position + text)
        position += text
        indices_AP = np.indices((time, height // merge, width // merge)).reshape(3, -1)
        indices_AP[0] = (indices_AP[0] * np.float32(interval)).astype(np.int32)
        token = each.start + each.length
        result_AP[:, each.start : token] = indices_AP + position
        position += max(height, width) // merge
    result_AP[:, token:] = np.arange(position, position + num_tokens - token)
    return result_AP


def patches(modality: str, item: MediaItem, settings: MediaSettings) -> Mapping[str, Tensor]:
    """Bytes of patches; those of one merged square stand together. An image is one frame."""
    return patches_of(item, grid_of(item, settings), settings)


def patches_of(item: MediaItem, grid: Grid, settings: MediaSettings) -> dict[str, Tensor]:
    """The same for a grid that is known."""
    import torch
    from PIL import Image

    vision = settings.config["vision_config"]
    patch, merge = vision["patch_size"], vision["spatial_merge_size"]
    time, height, width = grid
    frames = [
        np.asarray(frame.resize((width * patch, height * patch), Image.Resampling.BICUBIC))
        for frame in frames_of(item)
    ]
    per_step = vision["temporal_patch_size"] if item.modality == "video" else 1
    frames += [frames[-1]] * (time * per_step - len(frames))
    pixels = np.stack(frames).reshape(
        time, per_step, height // merge, merge, patch, width // merge, merge, patch, 3
    )
    # time, rows of squares, columns, rows of a square, its columns, channel, frame, pixels
    pixels = pixels.transpose(0, 2, 5, 3, 6, 8, 1, 4, 7).reshape(-1, 3, per_step, patch, patch)
    return {
        "patches": torch.from_numpy(np.ascontiguousarray(pixels)),
        "grid": torch.tensor(grid, dtype=torch.int32),
    }


def frames_of(item: MediaItem) -> list[Any]:
    """The pictures of an item."""
    from PIL import Image

    if item.modality == "image":
        return [item.value]
    return [Image.fromarray(frame) for frame in item.value.frames]


def grid_of(item: MediaItem, settings: MediaSettings) -> Grid:
    """As many patches as its size asks for, within the least and the most pixels."""
    time, height, width = sides_of(item, settings)
    least, most = pixel_limits(item.modality, settings, PIXELS[item.modality])
    rows, columns = fitted(height, width, settings, least=least, most=most)
    return time, rows, columns


def sides_of(item: MediaItem, settings: MediaSettings) -> tuple[int, int, int]:
    """Steps in time, and the pixels of a picture's height and width."""
    if item.modality == "image":
        time, (width, height) = 1, item.value.size
    else:
        num_frames, height, width = item.value.frames.shape[:3]
        time = -(-num_frames // settings.config["vision_config"]["temporal_patch_size"])
    if max(height, width) > 200 * min(height, width):
        raise PromptError(f"{width} x {height} pixels: one side is over 200 times the other")
    return time, height, width


def fitted(
    height: float,
    width: float,
    settings: MediaSettings,
    *,
    least: float,
    most: float,
    frames: int = 1,
    counted: int = 1,
) -> tuple[int, int]:
    """Rows and columns of patches: whole squares, of about the picture's shape.

    ``least`` and ``most`` bound the pixels of ``counted`` frames, of ``frames`` to scale them.
    """
    vision = settings.config["vision_config"]
    merge = vision["spatial_merge_size"]
    step = vision["patch_size"] * merge
    rows, columns = (round(side / step) for side in (height, width))
    if counted * rows * columns * step**2 > most:
        factor = math.sqrt(frames * height * width / most)
        rows, columns = (max(1, math.floor(side / factor / step)) for side in (height, width))
    elif counted * rows * columns * step**2 < least:
        factor = math.sqrt(least / (frames * height * width))
        rows, columns = (math.ceil(side * factor / step) for side in (height, width))
    # A side of less than half a square, where no limit has said otherwise.
    return max(1, rows) * merge, max(1, columns) * merge


def pixel_limits(
    modality: str, settings: MediaSettings, default: tuple[int, int]
) -> tuple[int, int]:
    """The least and the most pixels, under the names of two generations."""
    size = settings.entry(modality, "size", {})
    least = settings.entry(modality, "min_pixels", size.get("shortest_edge") or default[0])
    most = settings.entry(modality, "max_pixels", size.get("longest_edge") or default[1])
    return least, most
