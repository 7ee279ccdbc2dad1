"""Small pictures, clips and configurations for tests of models that see."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image

from octavo_registry.modalities import VideoClip

TEXT = {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
}
VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 28,
    "patch_size": 7,
}


def picture(height: int, width: int, seed: int = 0) -> Image.Image:
    """Noise over a slope, so that no two parts are alike at any scale."""
    rng = np.random.default_rng((height, width, seed))
    noise = rng.integers(0, 128, (height, width, 3))
    slope = np.linspace(0, 127, height)[:, None, None] * np.linspace(0.2, 1, width)[:, None]
    return Image.fromarray((noise + slope).astype(np.uint8))


def clip(num_frames: int, height: int, width: int) -> VideoClip:
    """Frames of one size, each another picture."""
    frames = [np.asarray(picture(height, width, seed)) for seed in range(num_frames)]
    timestamps = tuple(each / 2 for each in range(num_frames))
    return VideoClip(frames=np.stack(frames), timestamps=timestamps)


def shuffled(image: Image.Image, size: int) -> Image.Image:
    """The same squares of pixels in another order: each where its left neighbour was."""
    return Image.fromarray(np.roll(np.asarray(image), size, axis=1))


def expanded(ids: list[int], counts: dict[int, list[int]]) -> list[int]:
    """Each token of a kind of media as often as its item has rows, item by item."""
    left = {token: list(each) for token, each in counts.items()}
    return [
        each for token in ids for each in [token] * (left[token].pop(0) if left.get(token) else 1)
    ]


def levels(found: Any, expected: Any, std: Any) -> float:
    """The largest difference of two normalised pictures in grey levels."""
    std_C11 = np.asarray(std, np.float32).reshape(3, 1, 1)
    return float(np.abs((np.asarray(found) - np.asarray(expected)) * std_C11).max() * 255)
