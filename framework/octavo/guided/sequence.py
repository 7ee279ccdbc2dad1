"""Sequences on their way through guides, and the masks of their next tokens."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo_registry.guided import Guide, GuideState

MASK_SECONDS = 0.02
"""A mask that takes longer lets its row sit out the step."""
ROWS_PER_JOB = 4
"""A native backend needs some 20 us a mask, and so does handing a job to a thread."""


@dataclass(frozen=True, slots=True)
class CompiledGuide:
    """A guide, and how long a request waited for it."""

    guide: Guide
    seconds: float = 0.0


class GuidedSequence:
    """Advanced by the engine's thread; its mask is filled in another.

    While ``is_filling`` the state belongs to that thread.
    """

    __slots__ = ("error", "filling", "forced", "is_current", "mask_W", "seconds", "state")

    def __init__(self, compiled: CompiledGuide, vocab_size: int) -> None:
        self.state: GuideState = compiled.guide.start()
        self.seconds = compiled.seconds
        self.mask_W: NDArray[np.int32] = np.zeros((vocab_size + 31) // 32, np.int32)
        self.is_current = False
        """The mask is that of the next token."""
        self.forced: list[int] = []
        """The next tokens where there is no choice; the mask is that of the first."""
        self.filling: Future[None] | None = None
        self.error: Exception | None = None
        """What the backend raised; the sequence cannot go on."""

    @property
    def is_filling(self) -> bool:
        """Whether a thread is at work on the mask."""
        return self.filling is not None and not self.filling.done()

    def accept(self, token: int) -> None:
        """Advance by a token that was drawn."""
        self.is_current = False
        try:
            if not self.state.accept(token):
                self.error = ValueError(
                    f"token {token} is not allowed; do other parameters ban all that are?"
                )
        except Exception as error:
            self.error = error

    def fill(self) -> None:
        """Make the mask current; for the thread that ``MaskFiller`` gives."""
        try:
            self.forced = self.state.forced()
            if self.forced:
                self.mask_W[:] = 0
                word, bit = divmod(self.forced[0], 32)
                self.mask_W.view(np.uint32)[word] = 1 << bit
            else:
                self.state.fill_bitmask(self.mask_W)
            if not self.mask_W.any():
                raise ValueError("no token continues the text, and the constraint is not met")
        except Exception as error:
            self.error = error
        self.is_current = True


class MaskFiller:
    """Fills masks in threads, for a limited time a step."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(min(8, os.cpu_count() or 1), "octavo-masks")

    def fill(self, sequences: Sequence[GuidedSequence]) -> None:
        """Make their masks current, save for those that take too long; these go on meanwhile."""
        wanted = [s for s in sequences if not s.is_current and not s.is_filling]
        for begin in range(0, len(wanted), ROWS_PER_JOB):
            job = wanted[begin : begin + ROWS_PER_JOB]
            future = self._threads.submit(_fill_all, job)
            for each in job:
                each.filling = future
        wait([s.filling for s in sequences if s.filling is not None], MASK_SECONDS)

    def close(self) -> None:
        """End the threads when they have nothing left to do."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _fill_all(sequences: list[GuidedSequence]) -> None:
    for sequence in sequences:
        sequence.fill()
