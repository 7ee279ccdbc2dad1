"""Sounds of one to four beeps, all low or all high. Axes in names: S samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from examples.train_tiny_omni.ranges import Range, chance

TONES = {"low": Range(150, 420, 280, 310), "high": Range(900, 2600, 1500, 1700)}
"""Hertz."""
COUNTS = (1, 2, 3, 4)
BEEP = Range(0.08, 0.4, 0.2, 0.24)
GAP = Range(0.09, 0.5, 0.25, 0.3)
"""Seconds."""
EDGE = 0.008
"""Seconds in which a beep swells and fades."""


@dataclass(frozen=True)
class Sound:
    count: int
    pitch: str
    samples_S: np.ndarray
    rate: int


def draw_sound(rng: np.random.Generator, held_out: bool, rate: int) -> Sound:
    count = COUNTS[rng.integers(len(COUNTS))]
    pitch = tuple(TONES)[rng.integers(2)]
    tone = TONES[pitch].draw(rng, held_out)
    beep, gap = BEEP.draw(rng, held_out), GAP.draw(rng, held_out)
    uneven = float(rng.uniform(0, 0.3)) if chance(rng, 0.5) else 0.0
    wave = rng.integers(4)
    pieces = [silence(rng.uniform(0.0, 0.6), rate)]
    for number in range(count):
        if number:
            pieces.append(silence(gap * (1 + rng.uniform(0, uneven)), rate))
        exact = tone * (1 + rng.uniform(-0.1, 0.1) * uneven)
        pieces.append(beep_of(wave, exact, beep * (1 + rng.uniform(0, uneven)), rate))
    pieces.append(silence(rng.uniform(0.0, 0.6), rate))
    samples_S = np.concatenate(pieces) * rng.uniform(0.1, 0.8)
    loudness = np.abs(samples_S).max()
    hiss = loudness * 10 ** rng.uniform(-3, -1) if chance(rng, 0.7) else loudness * 1e-4
    samples_S = samples_S + rng.normal(0, hiss, len(samples_S))
    return Sound(count, pitch, samples_S.clip(-1, 1).astype(np.float32), rate)


def beep_of(wave: int, tone: float, seconds: float, rate: int) -> np.ndarray:
    """A sine, a soft square or saw, or a tone with an octave on top."""
    times_S = np.arange(int(seconds * rate)) / rate
    phase_S = 2 * np.pi * tone * times_S
    if wave == 0:
        samples_S = np.sin(phase_S)
    elif wave == 1:
        samples_S = np.tanh(3 * np.sin(phase_S))
    elif wave == 2:
        samples_S = sum(np.sin(n * phase_S) / n for n in (1, 2, 3)) / 1.5
    else:
        samples_S = 0.8 * np.sin(phase_S) + 0.2 * np.sin(2 * phase_S)
    fade_S = np.minimum(times_S, times_S[::-1]) / EDGE
    return samples_S * np.minimum(fade_S, 1.0)


def silence(seconds: float, rate: int) -> np.ndarray:
    return np.zeros(int(seconds * rate))
