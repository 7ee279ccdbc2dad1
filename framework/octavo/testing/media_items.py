"""Items for a model's ``MediaExample``: of one size for each shape, of other content for each seed.

Noise over a slope, so that no two parts are alike at any scale.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from octavo_registry.modalities import VideoClip

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL import Image

SIZES: Final = ((56, 56), (60, 140), (120, 90), (31, 201))
"""Height and width of pictures and frames, by shape."""
FRAMES: Final = (2, 5, 1, 4)
SOUND_SECONDS: Final = (0.4, 1.1, 0.25, 2.0)
SOUND_RATE: Final = 16000


def picture(shape: int, seed: int) -> Image.Image:
    """An image."""
    from PIL import Image

    return Image.fromarray(_pixels(shape, seed))


def clip(shape: int, seed: int) -> VideoClip:
    """A video, half a second from frame to frame."""
    num_frames = FRAMES[shape % len(FRAMES)]
    frames = [_pixels(shape, num_frames * seed + number) for number in range(num_frames)]
    timestamps = tuple(number / 2 for number in range(num_frames))
    return VideoClip(frames=np.stack(frames), timestamps=timestamps)


def sound(shape: int, seed: int) -> tuple[NDArray[np.float32], int]:
    """Tones of random pitch in some noise."""
    rng = np.random.default_rng((shape, seed))
    time = np.arange(int(SOUND_SECONDS[shape % len(SOUND_SECONDS)] * SOUND_RATE)) / SOUND_RATE
    tones = sum(np.sin(2 * np.pi * pitch * time) for pitch in rng.uniform(100, 4000, 3))
    samples = 0.2 * np.asarray(tones) + 0.05 * rng.standard_normal(len(time))
    return samples.astype(np.float32), SOUND_RATE


def _pixels(shape: int, seed: int) -> NDArray[Any]:
    height, width = SIZES[shape % len(SIZES)]
    rng = np.random.default_rng((shape, seed))
    noise = rng.integers(0, 128, (height, width, 3))
    first, last = rng.uniform(0, 127, (2, 3))
    slope = np.linspace(first, last, height)[:, None] * np.linspace(0.2, 1, width)[:, None]
    return (noise + slope).astype(np.uint8)
