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
MIN_PIXELS, MAX_PIXELS = 56 * 56, 28 * 28 * 1280


def place_media(prompt: MediaPrompt, settings: MediaSettings) -> MediaPrompt:
    """A token for each square of merged patches, with its place in time and space."""
    merge = settings.config["vision_config"]["spatial_merge_size"]
    grids = [tuple(item.tensors["grid"].tolist()) for item in prompt.media]
    counts = [math.prod(grid) // merge**2 for grid in grids]
    tokens = {
        "image": settings.config["image_token_id"],
        "video": settings.config["video_token_id"],
    }
    placed = expand_placeholders(prompt, tokens, counts)
    return replace(
        placed,
        positions_AP=positions(len(placed.token_ids), placed.placeholders, grids, merge),
    )


def positions(
    num_tokens: int, placeholders: Sequence[Placeholder], grids: Sequence[Grid], merge: int
) -> NDArray[np.int32]:
    """Text goes on on all axes at once, from where the longest side of what was before it ends."""
    result_AP = np.empty((3, num_tokens), np.int32)
    token = position = 0
    for each in placeholders:
        text = each.start - token
        result_AP[:, token : each.start] = np.arange(position, position + text)
        position += text
        time, height, width = grids[each.item]
        sides = (time, height // merge, width // merge)
        indices_AP = np.indices(sides, np.int32).reshape(3, -1)
        token = each.start + each.length
        result_AP[:, each.start : token] = indices_AP + position
        position += max(sides[1:])
    result_AP[:, token:] = np.arange(position, position + num_tokens - token)
    return result_AP


def patches(modality: str, item: MediaItem, settings: MediaSettings) -> Mapping[str, Tensor]:
    """Bytes of patches; those of one merged square stand together. An image is one frame."""
    import torch
    from PIL import Image

    vision = settings.config["vision_config"]
    patch, merge = vision["patch_size"], vision["spatial_merge_size"]
    time, height, width = grid = grid_of(item, settings)
    frames = [
        np.asarray(frame.resize((width * patch, height * patch), Image.Resampling.BICUBIC))
        for frame in frames_of(item)
    ]
    per_step = vision["temporal_patch_size"] if modality == "video" else 1
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
    vision = settings.config["vision_config"]
    step = vision["patch_size"] * vision["spatial_merge_size"]
    if item.modality == "image":
        time, (width, height) = 1, item.value.size
    else:
        num_frames, height, width = item.value.frames.shape[:3]
        time = -(-num_frames // vision["temporal_patch_size"])
    if max(height, width) > 200 * min(height, width):
        raise PromptError(f"{width} x {height} pixels: one side is over 200 times the other")
    rows, columns = (max(1, round(side / step)) for side in (height, width))
    least, most = pixel_limits(item.modality, settings)
    if rows * columns * step**2 > most:
        factor = math.sqrt(height * width / most)
        rows, columns = (max(1, math.floor(side / factor / step)) for side in (height, width))
    elif rows * columns * step**2 < least:
        factor = math.sqrt(least / (height * width))
        rows, columns = (math.ceil(side * factor / step) for side in (height, width))
    merge = vision["spatial_merge_size"]
    return time, rows * merge, columns * merge


def pixel_limits(modality: str, settings: MediaSettings) -> tuple[int, int]:
    """The least and the most pixels of a picture, under the names of two generations."""
    size = settings.entry(modality, "size", {})
    least = settings.entry(modality, "min_pixels", size.get("shortest_edge") or MIN_PIXELS)
    most = settings.entry(modality, "max_pixels", size.get("longest_edge") or MAX_PIXELS)
    return least, most
