"""Numbers to draw media with, a part of which is kept for the test."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Range:
    """From ``low`` to ``high``; what lies between ``first`` and ``last`` is held out."""

    low: float
    high: float
    first: float
    last: float

    def draw(self, rng: np.random.Generator, held_out: bool) -> float:
        if held_out:
            return float(rng.uniform(self.first, self.last))
        below, above = self.first - self.low, self.high - self.last
        place = float(rng.uniform(0.0, below + above))
        return self.low + place if place < below else self.last + place - below

    def whole(self, rng: np.random.Generator, held_out: bool) -> int:
        return round(self.draw(rng, held_out))


def chance(rng: np.random.Generator, probability: float) -> bool:
    return bool(rng.random() < probability)
