"""Who of those that wait is to run next, where some wait for their adapters' rank rows."""

from __future__ import annotations

from typing import Final

from octavo.adapters.pool import AdapterPool
from octavo.scheduling.sequence import Sequence
from octavo.scheduling.waiting import WaitingQueue

MOST_PASSES: Final = 256
"""Sequences that may enter with an adapter that runs while an earlier one waits for rank rows."""


class Entering:
    """First come, first served, but what waits for rank rows holds up only others that need some.

    An adapter that runs needs no more of them; yet each sequence that enters with it keeps them
    from those that wait, so that no more than ``MOST_PASSES`` do.
    """

    def __init__(self, waiting: WaitingQueue, adapters: AdapterPool) -> None:
        self._waiting = waiting
        self._adapters = adapters
        self._passed: set[int] = set()
        """Who has passed the first of those that wait for rank rows."""

    def next(self) -> Sequence | None:
        """The one to place now; its adapter, if any, is on the device when the next step runs."""
        waiting, adapters = self._waiting, self._adapters
        aside = waiting.peek_aside()
        if aside is None:
            self._passed.clear()
        elif self._is_first(aside) and adapters.provide(aside.request.adapter) is not None:
            self._passed.clear()
            waiting.take_back()
        while (sequence := waiting.peek()) is not None and not self._may_enter(sequence):
            waiting.set_aside()
        return sequence

    def _is_first(self, aside: Sequence) -> bool:
        first, key = self._waiting.peek(), self._waiting.sort_key
        return first is None or key(aside) <= key(first)

    def _may_enter(self, sequence: Sequence) -> bool:
        adapter = sequence.request.adapter
        if not adapter:
            return True
        aside, key = self._waiting.peek_aside(), self._waiting.sort_key
        if aside is None or key(sequence) <= key(aside):  # equal: its place of before
            return self._adapters.provide(adapter) is not None
        if not self._adapters.is_running(adapter):
            return False
        if len(self._passed) < MOST_PASSES:
            self._passed.add(sequence.id)
        return sequence.id in self._passed
