"""The queue of sequences that hold no slot."""

from __future__ import annotations

import heapq

from octavo.scheduling.sequence import Sequence

SortKey = tuple[int, int, int]
Heap = list[tuple[SortKey, int]]


class WaitingQueue:
    """Ordered by priority (under that policy), then arrival; a preempted one keeps its place.

    Those that wait for room on the device are set aside, in the same order, so that others pass
    them.
    """

    def __init__(self, *, by_priority: bool) -> None:
        self._by_priority = by_priority
        self._heap: Heap = []
        self._aside: Heap = []
        self._sequences: dict[int, Sequence] = {}
        self.num_tokens = 0

    def __len__(self) -> int:
        return len(self._sequences)

    def sort_key(self, sequence: Sequence) -> SortKey:
        """What both waiting and running sequences are ordered by; the largest is preempted."""
        priority = sequence.request.priority if self._by_priority else 0
        return (priority, sequence.arrival, sequence.index)

    def push(self, sequence: Sequence) -> None:
        """Add a sequence at its place."""
        self._sequences[sequence.id] = sequence
        self.num_tokens += len(sequence.tokens)
        heapq.heappush(self._heap, (self.sort_key(sequence), sequence.id))

    def peek(self) -> Sequence | None:
        """Return the first, or None when nobody is left but those that were set aside."""
        return self._first(self._heap)

    def peek_aside(self) -> Sequence | None:
        """Return the first of those that were set aside."""
        return self._first(self._aside)

    def set_aside(self) -> None:
        """Let others pass the first one."""
        heapq.heappush(self._aside, heapq.heappop(self._heap))

    def take_back(self) -> None:
        """Let the first of those that were set aside wait among the others again."""
        heapq.heappush(self._heap, heapq.heappop(self._aside))

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it stands."""
        del self._sequences[sequence.id]
        self.num_tokens -= len(sequence.tokens)

    def _first(self, heap: Heap) -> Sequence | None:
        while heap:
            sequence = self._sequences.get(heap[0][1])
            if sequence is not None:
                return sequence
            heapq.heappop(heap)
        return None
