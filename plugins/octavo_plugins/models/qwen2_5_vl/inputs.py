"""Media of Qwen2.5-VL: Qwen2-VL's, but that a step in time is as long as its seconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from octavo.errors import PromptError
from octavo_plugins.models.qwen2_vl import inputs as qwen2_vl
from octavo_registry.modalities import MediaItem, MediaPrompt, MediaSettings

if TYPE_CHECKING:
    from torch import Tensor

FRAMES_PER_SECOND = 24.0
"""Rate of frames without timestamps, as in the model's own processor."""
SECONDS = "second_per_grid_ts"
MOST_SECONDS = 3600


def place_media(prompt: MediaPrompt, settings: MediaSettings) -> MediaPrompt:
    """A token for each square of merged patches, with its place in time and space."""
    per_second = settings.config["vision_config"].get("tokens_per_second", 4)
    intervals = [
        per_second * float(item.tensors["seconds"]) if item.modality == "video" else 1.0
        for item in prompt.media
    ]
    return qwen2_vl.placed_with(prompt, settings, intervals)


def patches(modality: str, item: MediaItem, settings: MediaSettings) -> Mapping[str, Tensor]:
    """Qwen2-VL's, and how long a step in time is."""
    import torch

    tensors = dict(qwen2_vl.patches(modality, item, settings))
    if modality == "video":
        per_step = settings.config["vision_config"]["temporal_patch_size"]
        seconds = per_step * seconds_per_frame(item.value)
        if not 0 <= seconds <= MOST_SECONDS:
            raise PromptError(
                f"the video's timestamps make steps of {seconds:g} seconds; they must rise, by at "
                f"most {MOST_SECONDS}"
            )
        tensors["seconds"] = torch.tensor(seconds)
    return tensors


def given_rows(
    modality: str, tensors: Mapping[str, Tensor], settings: MediaSettings
) -> Mapping[str, Tensor]:
    """Rows of an item that came encoded, its grid, and a video's seconds of a step in time."""
    if modality == "image":
        return qwen2_vl.given_rows(modality, tensors, settings)
    seconds = tensors.get(SECONDS)
    if seconds is None or seconds.numel() != 1 or not 0 < float(seconds) <= MOST_SECONDS:
        raise PromptError(f"{SECONDS} must be one number above 0, at most {MOST_SECONDS}")
    made = qwen2_vl.rows_and_grid(modality, tensors, settings, beside=(SECONDS,))
    return {**made, "seconds": seconds.flatten()[0]}


def seconds_per_frame(clip: Any) -> float:
    """The mean distance of its frames."""
    times = clip.timestamps
    if times is None or len(times) < 2:
        return 1.0 / FRAMES_PER_SECOND
    return float(times[-1] - times[0]) / (len(times) - 1)
