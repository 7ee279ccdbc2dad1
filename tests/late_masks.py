"""Masks that come too late when a test says so."""

from __future__ import annotations

from concurrent.futures import Future


class WilfulFiller:
    """Leaves out as many masks as it is told to."""

    def __init__(self) -> None:
        self.num_late = 0

    def fill(self, sequences, *, num_rows) -> None:
        for sequence in sequences:
            if self.num_late > 0:
                self.num_late -= 1
                sequence.filling = Future()
            else:
                sequence.filling = None
                if not sequence.is_current:
                    sequence.fill()
