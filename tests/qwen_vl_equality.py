"""Prompts for all generations of Qwen-VL: what their references take, made with plain loops.

Frames become patches by the references' own processor of images, one frame at a time, which has the
right size already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from PIL import Image

import media_pictures
from media_equality import MediaCase, greedy
from octavo_registry.modalities import VideoClip
from video_processors import frames_resized

START, END, IMAGE, VIDEO = 148, 149, 150, 151
TOKENS = {
    "image_token_id": IMAGE,
    "video_token_id": VIDEO,
    "vision_start_token_id": START,
    "vision_end_token_id": END,
}
TEXT = {
    **media_pictures.TEXT,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "mrope_section": [2, 3, 3],
    },
}
SIZES = ((56, 56), (60, 140), (120, 90), (30, 230))


def picture(height: int, width: int, seed: int = 0) -> Image.Image:
    rng = np.random.default_rng((seed, height, width))
    return Image.fromarray(rng.integers(0, 255, (height, width, 3), dtype=np.uint8))


def clip(num_frames: int, height: int, width: int, seconds: float = 0.5) -> VideoClip:
    rng = np.random.default_rng((num_frames, height, width))
    frames = rng.integers(0, 255, (num_frames, height, width, 3), dtype=np.uint8)
    return VideoClip(frames=frames, timestamps=tuple(seconds * i for i in range(num_frames)))


@dataclass
class Prompt:
    """Tokens with one placeholder for each item."""

    token_ids: list[int]
    images: list[Image.Image] = field(default_factory=list)
    videos: list[VideoClip] = field(default_factory=list)

    def case(self, expected: Sequence[int]) -> MediaCase:
        media = {"image": self.images, "video": self.videos}
        given = {name: list(items) for name, items in media.items() if items}
        return MediaCase(token_ids=self.token_ids, media=given, expected=list(expected))


PROMPTS = (
    Prompt([5, START, IMAGE, END, 9, 11], [picture(*SIZES[0])]),
    Prompt([START, IMAGE, END, 7, START, IMAGE, END, 3], [picture(*SIZES[i]) for i in (1, 2)]),
    Prompt([2, START, VIDEO, END, 8, 9], videos=[clip(5, 60, 90)]),
    Prompt(
        [START, VIDEO, END, 6, START, IMAGE, END, 4, START, VIDEO, END, 1],
        [picture(*SIZES[3])],
        [clip(4, 56, 70, 1.0), clip(1, 90, 60)],
    ),
    Prompt([4, 5, 6, 7, 8, 9, 10]),
    Prompt([2, START, VIDEO, END, 8, START, IMAGE, END], [picture(*SIZES[0])], [clip(12, 30, 30)]),
)
"""The last one's video goes further in time than in height or width."""


def video_patches(process: Any, video: VideoClip) -> tuple[torch.Tensor, list[int]]:
    """Two frames stand in a patch, and the last one stands twice where it is alone."""
    channels, patch = 3, process.patch_size
    grid = process(Image.fromarray(video.frames[0]), return_tensors="pt")["image_grid_thw"]
    _, rows, columns = grid[0].tolist()
    frames = frames_resized(video, rows * patch, columns * patch)
    frames += [frames[-1]] * (len(frames) % 2)
    made = [process(frame, return_tensors="pt") for frame in frames]
    rows = [each["pixel_values"].view(-1, channels, 2, patch, patch) for each in made]
    steps = [
        torch.stack([first[:, :, 0], second[:, :, 0]], dim=2)
        for first, second in zip(rows[::2], rows[1::2], strict=True)
    ]
    _, height, width = made[0]["image_grid_thw"][0].tolist()
    return torch.cat(steps).flatten(1), [len(steps), height, width]


def reference_inputs(
    prompt: Prompt, process: Any, process_frame: Any
) -> tuple[dict[str, Any], list[list[int]], list[list[int]]]:
    """Tensors for a reference's ``generate``, and the grids of images and videos."""
    inputs: dict[str, Any] = {}
    if prompt.images:
        made = process(prompt.images, return_tensors="pt")
        inputs["pixel_values"] = made["pixel_values"]
        inputs["image_grid_thw"] = made["image_grid_thw"]
    if prompt.videos:
        pairs = [video_patches(process_frame, video) for video in prompt.videos]
        inputs["pixel_values_videos"] = torch.cat([rows for rows, _ in pairs])
        inputs["video_grid_thw"] = torch.tensor([grid for _, grid in pairs])
    images = inputs["image_grid_thw"].tolist() if prompt.images else []
    videos = inputs["video_grid_thw"].tolist() if prompt.videos else []
    return inputs, images, videos


def expanded(token_ids: list[int], images: list[list[int]], videos: list[list[int]]) -> list[int]:
    """One token for each square of four patches."""
    waiting = {IMAGE: iter(images), VIDEO: iter(videos)}
    ids = []
    for token in token_ids:
        count = int(np.prod(next(waiting[token]))) // 4 if token in waiting else 1
        ids += [token] * count
    return ids


def trained_positions(per_second: float) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """In the place of a reference's ``get_rope_index``, which leaves time out behind a video.

    One token after another: text goes on at one above the largest position before it.
    """

    def found(
        input_ids: torch.Tensor,
        image_grid_thw: torch.Tensor | None = None,
        video_grid_thw: torch.Tensor | None = None,
        second_per_grid_ts: torch.Tensor | None = None,
        **_: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        (ids,) = input_ids.tolist()
        images = [] if image_grid_thw is None else image_grid_thw.tolist()
        videos = [] if video_grid_thw is None else video_grid_thw.tolist()
        seconds = [1.0] * len(videos) if second_per_grid_ts is None else second_per_grid_ts.tolist()
        places: list[tuple[int, int, int]] = []
        while len(places) < len(ids):
            token = ids[len(places)]
            base = 1 + max((max(place) for place in places), default=-1)
            if token not in (IMAGE, VIDEO):
                places.append((base, base, base))
                continue
            steps, height, width = images.pop(0) if token == IMAGE else videos.pop(0)
            stride = per_second * seconds.pop(0) if token == VIDEO else 1.0
            for step in range(steps):
                for row in range(height // 2):
                    for column in range(width // 2):
                        places.append((base + int(step * stride), base + row, base + column))
        positions = torch.tensor(places).T.unsqueeze(1)
        return positions, torch.tensor([[1 + max(map(max, places)) - len(ids)]])

    return found


def expected_of(model: Any, ids: list[int], inputs: dict[str, Any]) -> list[int]:
    ids_BT = torch.tensor([ids])
    kinds_BT = (ids_BT == IMAGE).int() + 2 * (ids_BT == VIDEO).int()
    return greedy(model, ids, mm_token_type_ids=kinds_BT, **inputs)


def encoded_media(
    model: Any, inputs: dict[str, Any], images: list[list[int]], videos: list[list[int]]
) -> dict[str, list[dict[str, torch.Tensor]]]:
    """The rows that a reference's own encoder makes, as a user gives them in the items' place."""
    media = {}
    for modality, pixels, grids in (
        ("image", "pixel_values", images),
        ("video", "pixel_values_videos", videos),
    ):
        if not grids:
            continue
        with torch.no_grad():
            found = model.model.visual(inputs[pixels], torch.tensor(grids))
        deep = getattr(found, "deepstack_features", None) or []
        rows = torch.cat([found.pooler_output, *deep], dim=1)
        pieces = rows.split([int(np.prod(grid)) // 4 for grid in grids])
        media[modality] = [
            {f"{modality}_embeds": each, f"{modality}_grid_thw": torch.tensor([grid])}
            for each, grid in zip(pieces, grids, strict=True)
        ]
    return media
