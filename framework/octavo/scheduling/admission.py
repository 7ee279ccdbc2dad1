"""Who of those that wait is to run next, where some wait for room on the device.

Rank rows for an adapter, or words for the automaton of a guide.
"""

from __future__ import annotations

from typing import Final

from octavo.residency.adapters import AdapterPool
from octavo.residency.automata import AutomatonPool
from octavo.scheduling.sequence import Sequence
from octavo.scheduling.waiting import WaitingQueue

MOST_PASSES: Final = 256
"""Sequences that may enter with what runs already while an earlier one waits for room of it."""


class Admission:
    """First come, first served, but what waits for room holds up only others that need some.

    An adapter or an automaton that runs needs no more of it; yet each sequence that enters with it
    keeps it from those that wait, so that no more than ``MOST_PASSES`` do.
    """

    def __init__(
        self, waiting: WaitingQueue, adapters: AdapterPool, automata: AutomatonPool
    ) -> None:
        self._waiting = waiting
        self._adapters = adapters
        self._automata = automata
        self._passed: set[int] = set()
        """Who has passed the first of those that wait for room."""

    def next(self) -> Sequence | None:
        """The one to place now; what it needs is on the device when the next step runs."""
        waiting = self._waiting
        aside = waiting.peek_aside()
        if aside is None:
            self._passed.clear()
        elif self._is_first(aside) and self._provide(aside):
            self._passed.clear()
            waiting.take_back()
        while (sequence := waiting.peek()) is not None and not self._may_enter(sequence):
            waiting.set_aside()
        return sequence

    def _is_first(self, aside: Sequence) -> bool:
        first, key = self._waiting.peek(), self._waiting.sort_key
        return first is None or key(aside) <= key(first)

    def _may_enter(self, sequence: Sequence) -> bool:
        if not sequence.request.adapter and sequence.automaton is None:
            return True
        aside, key = self._waiting.peek_aside(), self._waiting.sort_key
        if aside is None or key(sequence) <= key(aside):  # equal: its place of before
            return self._provide(sequence)
        adapters, automata = self._adapters, self._automata
        adapter, automaton = sequence.request.adapter, sequence.automaton
        of_rows = bool(adapter) and adapters.provide(aside.request.adapter) is None
        of_words = automaton is not None and automata.provide(aside.automaton) is None
        if of_rows and not adapters.is_running(adapter):
            return False
        if of_words and not automata.is_running(automaton):
            return False
        if not self._provide(sequence):
            return False
        if (of_rows or of_words) and len(self._passed) < MOST_PASSES:
            self._passed.add(sequence.id)
        return not (of_rows or of_words) or sequence.id in self._passed

    def _provide(self, sequence: Sequence) -> bool:
        """Have on the device what it needs, or as much of it as there is room for."""
        ranks = self._adapters.provide(sequence.request.adapter)
        automaton_at = self._automata.provide(sequence.automaton)
        return ranks is not None and automaton_at is not None
