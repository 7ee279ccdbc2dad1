"""Which frames of a video a model sees."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from octavo_registry.modalities import MediaError


@dataclass(frozen=True, slots=True)
class Sampling:
    """The options of "video". Without ``num_frames`` and ``fps`` all frames are taken."""

    num_frames: int | None = None
    fps: float | None = None
    """Frames for each second of the video; ``num_frames`` goes before it."""
    min_frames: int | None = None
    max_frames: int | None = None
    """Bounds on the number that the two above give."""
    multiple_of: int | None = None
    """The number is rounded down to one of these."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            kinds = (int, float) if field.name == "fps" else (int,)
            if value is not None and (type(value) not in kinds or not 0 < value < math.inf):
                raise MediaError(f"it has {field.name}={value!r}, which must be a number above 0")

    def choose(self, total: int, seconds: float) -> list[int]:
        """Return the indexes of frames to take, in order and evenly spread from the first.

        ``total`` is above 0; a video of fewer frames than are asked for gives all of them.
        """
        if self.num_frames is not None:
            wanted = self.num_frames
        elif self.fps is not None:
            wanted = int(min(seconds * self.fps, total))
        else:
            wanted = total
        wanted = max(wanted, self.min_frames or 1)
        wanted = min(wanted, self.max_frames or wanted, total)
        if self.multiple_of is not None:
            wanted = max(wanted - wanted % self.multiple_of, min(self.multiple_of, total))
        return [index * total // wanted for index in range(wanted)]
