"""Media of Qwen3-VL: each step in time of a video stands by itself, behind its seconds as text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from octavo.errors import PromptError
from octavo.inputs.media import expand_items
from octavo_plugins.models.qwen2_5_vl.inputs import FRAMES_PER_SECOND
from octavo_plugins.models.qwen2_vl.inputs import (
    PIXELS,
    Grid,
    fitted,
    grids_of,
    patches_of,
    pixel_limits,
    positions,
    rows_and_grid,
    sides_of,
    tokens_of,
)
from octavo_registry.modalities import MediaItem, MediaPrompt, MediaSettings

if TYPE_CHECKING:
    from torch import Tensor

GREY = (0.5, 0.5, 0.5)
VIDEO_PIXELS = (128 * 32 * 32, 32 * 32 * 768)
"""The least and the most of all frames together."""


def place_media(prompt: MediaPrompt, settings: MediaSettings) -> MediaPrompt:
    """A token for each square of merged patches, with its place in time and space."""
    config = settings.config
    merge = config["vision_config"]["spatial_merge_size"]
    start, end = config["vision_start_token_id"], config["vision_end_token_id"]
    tokens, grids = tokens_of(settings), grids_of(prompt)
    contents = []
    for item, (_, height, width) in zip(prompt.media, grids, strict=True):
        squares = [tokens[item.modality]] * (height * width // merge**2)
        if item.modality == "image":
            contents.append(squares)
            continue
        steps: list[int] = []
        for seconds in item.tensors["seconds"].tolist():
            steps += [*settings.text_ids(f"<{seconds:.1f} seconds>"), start, *squares, end]
        contents.append(steps)
    bare = replace(prompt, token_ids=without_marks(prompt.token_ids, start, tokens["video"], end))
    placed = expand_items(bare, tokens, contents)
    places = [(1, *grids[each.item][1:]) for each in placed.placeholders]
    return replace(
        placed,
        positions_AP=positions(
            len(placed.token_ids), placed.placeholders, places, [1.0] * len(places), merge
        ),
    )


def without_marks(token_ids: Sequence[int], start: int, video: int, end: int) -> list[int]:
    """A video without the marks that a chat template puts around it: its steps have their own."""
    ids = list(token_ids)
    if video not in ids:
        return ids
    for place in range(len(ids) - 2, 0, -1):
        if ids[place - 1 : place + 2] == [start, video, end]:
            ids[place - 1 : place + 2] = [video]
    return ids


def given_rows(
    modality: str, tensors: Mapping[str, Tensor], settings: MediaSettings
) -> Mapping[str, Tensor]:
    """Rows of an image that came encoded: those of the first layers stand behind its own."""
    if modality == "video":
        raise PromptError("rows of a video have no seconds; give the video itself")
    deep = settings.config["vision_config"]["deepstack_visual_indexes"]
    return rows_and_grid(modality, tensors, settings, layers=1 + len(deep))


def patches(modality: str, item: MediaItem, settings: MediaSettings) -> Mapping[str, Tensor]:
    """Bytes of patches, and when the steps in time of a video are."""
    import torch

    tensors = patches_of(item, grid_of(item, settings), settings, mean=GREY, std=GREY)
    if modality == "video":
        per_step = settings.config["vision_config"]["temporal_patch_size"]
        seconds = seconds_of_steps(item.value, per_step)
        tensors["seconds"] = torch.tensor(seconds, dtype=torch.float64)
    return tensors


def grid_of(item: MediaItem, settings: MediaSettings) -> Grid:
    """As Qwen2-VL's, but that the limits of a video are for all its frames."""
    time, height, width = sides_of(item, settings)
    if item.modality == "image":
        least, most = pixel_limits("image", settings, PIXELS["image"])
        return time, *fitted(height, width, settings, least=least, most=most)
    vision = settings.config["vision_config"]
    per_step = vision["temporal_patch_size"]
    num_frames = max(len(item.value.frames), per_step)
    step = vision["patch_size"] * vision["spatial_merge_size"]
    scale = max(1.0, step / height, step / width)
    least, most = pixel_limits("video", settings, VIDEO_PIXELS)
    rows, columns = fitted(
        math.floor(height * scale),
        math.floor(width * scale),
        settings,
        least=least,
        most=most,
        frames=num_frames,
        counted=round(num_frames / per_step) * per_step,
    )
    return time, rows, columns


def seconds_of_steps(clip: Any, per_step: int) -> list[float]:
    """The middle between a step's first frame and its last."""
    times = clip.timestamps
    if times is None:
        times = [number / FRAMES_PER_SECOND for number in range(len(clip.frames))]
    times = [*times, *[times[-1]] * (-len(times) % per_step)]
    firsts, lasts = times[::per_step], times[per_step - 1 :: per_step]
    return [(first + last) / 2 for first, last in zip(firsts, lasts, strict=True)]
