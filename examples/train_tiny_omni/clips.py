"""Clips of a shape that moves left, right, up or down."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from examples.train_tiny_omni.features import chosen_frames
from examples.train_tiny_omni.pictures import PLACE, Figure, Picture, draw_look, picture_of
from examples.train_tiny_omni.ranges import Range, chance
from PIL import Image

DIRECTIONS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
NUM_FRAMES = Range(3, 24, 10, 13)
WAY = Range(0.35, 1.0, 0.6, 0.75)
"""Share of the room that the shape has to move in."""
BIGGEST = 0.75


@dataclass(frozen=True)
class Clip:
    figure: Figure
    direction: str
    pictures: list[Picture]

    @property
    def frames(self) -> list[Image.Image]:
        return [picture.image for picture in self.pictures]


def draw_clip(
    rng: np.random.Generator, figure: Figure, held_out: bool, *, whole: bool = False
) -> Clip:
    """The frames that the model sees of it; with ``whole``, all of them."""
    direction = list(DIRECTIONS)[rng.integers(4)]
    look = draw_look(rng, figure, held_out, biggest=BIGGEST)
    steps = np.array(DIRECTIONS[direction])
    way = WAY.draw(rng, held_out)
    start = rng.uniform(0, 1 - way)
    across = PLACE.draw(rng, held_out)
    length, width = look.room if steps[0] else look.room[::-1]
    drift = float(rng.uniform(-0.25, 0.25)) * way * length / width if chance(rng, 0.5) else 0.0
    bend = float(rng.uniform(0.7, 1.4))  # faster at the end, or at the beginning
    count = NUM_FRAMES.whole(rng, held_out)
    chosen = range(count) if whole else chosen_frames(count)
    pictures = []
    for number in chosen:
        gone = (number / (count - 1)) ** bend
        along = start + gone * way
        along = along if steps.sum() > 0 else 1 - along
        aside = min(1.0, max(0.0, across + drift * gone))
        pictures.append(picture_of(rng, look, (along, aside) if steps[0] else (aside, along)))
    return Clip(figure, direction, pictures)
