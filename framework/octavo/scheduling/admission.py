"""Who of those that wait is to run next, where some wait for room on the device.

Rank rows for an adapter, or words for the automaton of a guide.
"""

from __future__ import annotations

from typing import Final

from octavo.residency.pool import provide_all
from octavo.scheduling.sequence import Sequence
from octavo.scheduling.waiting import WaitingQueue

MOST_PASSES: Final = 256
"""Sequences that may enter with what runs already while an earlier one waits for room of it."""


class Admission:
    """First come, first served, but what waits for room holds up only others that need some.

    A resident that is in use needs no more of it; yet each sequence that enters with it keeps it
    from those that wait, so that no more than ``MOST_PASSES`` do.
    """

    def __init__(self, waiting: WaitingQueue) -> None:
        self._waiting = waiting
        self._passed: set[int] = set()
        """Who has passed the first of those that wait for room."""

    def next(self) -> Sequence | None:
        """The one to place now; what it needs is on the device when the next step runs."""
        waiting = self._waiting
        aside = waiting.peek_aside()
        if aside is None:
            self._passed.clear()
        elif self._is_first(aside) and provide_all(aside.needs) is not None:
            self._passed.clear()
            waiting.take_back()
        while (sequence := waiting.peek()) is not None and not self._may_enter(sequence):
            waiting.set_aside()
        return sequence

    def _is_first(self, aside: Sequence) -> bool:
        first, key = self._waiting.peek(), self._waiting.sort_key
        return first is None or key(aside) <= key(first)

    def _may_enter(self, sequence: Sequence) -> bool:
        if not sequence.needs:
            return True
        aside, key = self._waiting.peek_aside(), self._waiting.sort_key
        if aside is None or key(sequence) <= key(aside):  # equal: its place of before
            return provide_all(sequence.needs) is not None
        own = {pool: resident.key for pool, resident in sequence.needs}
        short = [pool for pool, other in aside.needs if pool in own and pool.provide(other) is None]
        if not all(pool.is_pinned(own[pool]) for pool in short):
            return False
        if provide_all(sequence.needs) is None:
            return False
        if short and len(self._passed) < MOST_PASSES:
            self._passed.add(sequence.id)
        return not short or sequence.id in self._passed
