"""Long sounds in pieces, cut where they are quiet."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

QUIET_SECONDS: Final = 0.1
"""A pause of this length is looked for."""
SEARCHED: Final = 6
"""In the last part of so many that a piece has."""


def cut_where_quiet(
    samples: NDArray[np.float32], rate: int, max_seconds: float
) -> list[NDArray[np.float32]]:
    """Pieces of at most so many seconds, which together are the whole; each is a view."""
    most, width = int(max_seconds * rate), max(int(QUIET_SECONDS * rate), 1)
    pieces = []
    while len(samples) > most:
        first = most - most // SEARCHED
        energy = np.cumsum(np.square(samples[first:most], dtype=np.float64))
        sums = energy[width:] - energy[:-width]
        cut = first + 1 + int(sums.argmin()) + width // 2 if len(sums) else most
        pieces.append(samples[:cut])
        samples = samples[cut:]
    return [*pieces, samples]
