"""What the encoders take: squares of pixels, slices of spectrograms.

The model's plugin does the same, in its own words; a test compares the two.
Axes in names: N sounds, S samples, M mel bands, T frames in time, P slices, F entries of a slice,
C colours, H height, W width.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers.audio_utils import mel_filter_bank

SIDE = 96
"""Pixels of the square that a picture is fitted into."""
GREY = (128, 128, 128)
NUM_FRAMES = 8
"""The most that are seen of a clip."""
MERGED = 4
"""Positions of an encoder that make a row: a square of two by two, or four slices of sound."""
RATE = 16000
HOP, WINDOW, BANDS = 160, 400, 80
SLICE = 4
"""Spectra in a slice of sound: 40 ms."""
SOUND_SLICES = 160
SOUND_SAMPLES = SOUND_SLICES * SLICE * HOP
"""6.4 seconds; a shorter sound is followed by silence."""
SOUND_ENTRIES = SLICE * BANDS


def chosen_frames(count: int) -> list[int]:
    """The frames that are seen of so many, evenly spread."""
    wanted = min(count, NUM_FRAMES)
    return [number * count // wanted for number in range(wanted)]


def square(image: Image.Image) -> np.ndarray:
    """Bytes [C, H, W] of the picture in the middle of a grey square."""
    scale = SIDE / max(image.size)
    width, height = (max(1, round(side * scale)) for side in image.size)
    found = Image.new("RGB", (SIDE, SIDE), GREY)
    resized = image.resize((width, height), Image.Resampling.BICUBIC)
    found.paste(resized, ((SIDE - width) // 2, (SIDE - height) // 2))
    return np.asarray(found).transpose(2, 0, 1)


def sound_slices(samples_NS: Tensor) -> Tensor:
    """Logarithmic mel spectra [N, P, F] as Whisper has them, of sounds of the full length."""
    window_S = torch.hann_window(WINDOW, device=samples_NS.device)
    spectra = torch.stft(samples_NS, WINDOW, HOP, window=window_S, return_complex=True)
    power_NST = spectra[..., :-1].abs() ** 2
    mel_NMT = torch.from_numpy(_filters()).to(samples_NS.device) @ power_NST
    log_NMT = mel_NMT.clamp(min=1e-10).log10()
    loudest_N11 = log_NMT.amax(dim=(1, 2), keepdim=True)
    scaled_NMT = (torch.maximum(log_NMT, loudest_N11 - 8) + 4) / 4
    return scaled_NMT.mT.unflatten(1, (-1, SLICE)).flatten(2)


def padded(samples_S: np.ndarray) -> np.ndarray:
    """The sound and the silence behind it."""
    return np.pad(samples_S, (0, SOUND_SAMPLES - len(samples_S)))


@functools.cache
def _filters() -> np.ndarray:
    """[M, frequencies]."""
    filters = mel_filter_bank(
        1 + WINDOW // 2, BANDS, 0.0, 8000.0, RATE, norm="slaney", mel_scale="slaney"
    )
    return np.ascontiguousarray(filters.T.astype(np.float32))
