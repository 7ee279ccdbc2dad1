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
from octavo.inputs.frames import resized_frames
from octavo.inputs.media import checked_rows, expand_placeholders, frames_asked, pixel_scale
from octavo.wording import shown
from octavo_registry.modalities import ROWS, MediaItem, MediaPrompt, MediaSettings, Placeholder

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

Grid = tuple[int, int, int]
"""Patches in time, height and width, before neighbours are merged."""
MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)
PIXELS = {"image": (56 * 56, 28 * 28 * 1280), "video": (128 * 28 * 28, 28 * 28 * 768)}
"""The least and the most of a picture, and of each frame."""


def place_media(prompt: MediaPrompt, settings: MediaSettings) -> MediaPrompt:
    """A token for each square of merged patches, with its place in time and space."""
    return placed_with(prompt, settings, [1.0] * len(prompt.media))


def placed_with(
    prompt: MediaPrompt, settings: MediaSettings, intervals: Sequence[float]
) -> MediaPrompt:
    """A token for each square of merged patches, where a step in time is so many positions."""
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
    """Grids of the items, as ``patches`` has made them."""
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
    """Text goes on at one above the largest position before it, of any axis, time's too.

    So the models were trained, by their paper and first code; Transformers from 5.x leaves time
    out. ``grids`` and ``intervals`` are those of each placeholder.
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
        position += int(indices_AP.max()) + 1
    result_AP[:, token:] = np.arange(position, position + num_tokens - token)
    return result_AP


def given_rows(
    modality: str, tensors: Mapping[str, Tensor], settings: MediaSettings
) -> Mapping[str, Tensor]:
    """Rows of an item that came encoded, and its grid."""
    return rows_and_grid(modality, tensors, settings)


def rows_and_grid(
    modality: str,
    tensors: Mapping[str, Tensor],
    settings: MediaSettings,
    *,
    layers: int = 1,
    beside: Sequence[str] = (),
) -> dict[str, Tensor]:
    """Rows of an item that came encoded, of so many layers, its grid, what may come besides."""
    import torch

    name = f"{modality}_grid_thw"
    given = tensors.get(name)
    grid = [] if given is None else given.flatten().tolist()
    merge = settings.config["vision_config"]["spatial_merge_size"]
    fits = len(grid) == 3 and all(
        type(side) is int and side > 0 and side % step == 0
        for side, step in zip(grid, (1, merge, merge), strict=True)
    )
    if not fits or (modality == "image" and grid[0] != 1):
        raise PromptError(
            f"{name}={shown(grid)} must be whole numbers: steps in time, and rows and columns of "
            f"patches, multiples of {merge}"
        )
    rows = checked_rows(
        modality,
        tensors,
        num_rows=math.prod(grid) // merge**2,
        row_size=layers * text_config_of(settings.config)["hidden_size"],
        beside=(name, *beside),
    )
    return {ROWS: rows, "grid": torch.tensor(grid, dtype=torch.int32)}


def text_config_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The language model's settings, which the first checkpoints have among the model's own."""
    text = {**config, **(config.get("text_config") or {})}
    if "tie_word_embeddings" in config:
        text["tie_word_embeddings"] = config["tie_word_embeddings"]
    return text


def decode_options(modality: str, settings: MediaSettings) -> dict[str, float]:
    """Frames of a video: an even number of them, so that steps in time are full."""
    asked = frames_asked(modality, settings, fps=2.0, min_frames=4, max_frames=768)
    return (
        {**asked, "multiple_of": settings.config["vision_config"]["temporal_patch_size"]}
        if asked
        else {}
    )


def patches(modality: str, item: MediaItem, settings: MediaSettings) -> Mapping[str, Tensor]:
    """Bytes of patches; those of one merged square stand together. An image is one frame."""
    return patches_of(item, grid_of(item, settings), settings)


def patches_of(
    item: MediaItem,
    grid: Grid,
    settings: MediaSettings,
    *,
    mean: Sequence[float] = MEAN,
    std: Sequence[float] = STD,
) -> dict[str, Tensor]:
    """Bytes of patches by a grid that is known; ``mean`` and ``std`` where a folder names none."""
    import torch
    from PIL import Image

    vision = settings.config["vision_config"]
    patch, merge = vision["patch_size"], vision["spatial_merge_size"]
    time, height, width = grid
    size = width * patch, height * patch
    if item.modality == "image":
        per_step, frames = 1, [np.asarray(item.value.resize(size, Image.Resampling.BICUBIC))]
    else:
        per_step = vision["temporal_patch_size"]
        frames = [*resized_frames(item.value, *size).permute(0, 2, 3, 1).numpy()]
    frames += [frames[-1]] * (time * per_step - len(frames))
    pixels = np.stack(frames).reshape(
        time, per_step, height // merge, merge, patch, width // merge, merge, patch, 3
    )
    # time, rows of squares, columns, rows of a square, its columns, channel, frame, pixels
    pixels = pixels.transpose(0, 2, 5, 3, 6, 8, 1, 4, 7).reshape(-1, 3, per_step, patch, patch)
    return {
        "patches": torch.from_numpy(np.ascontiguousarray(pixels)),
        "grid": torch.tensor(grid, dtype=torch.int32),
        "scale": pixel_scale(settings, item.modality, mean, std).unsqueeze(-1),
    }


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
