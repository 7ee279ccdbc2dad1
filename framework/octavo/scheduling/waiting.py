"""The queue of sequences that hold no slot."""

from __future__ import annotations

import heapq

from octavo.scheduling.sequence import Sequence

SortKey = tuple[int, int, int]


class WaitingQueue:
    """Ordered by priority (under that policy), then arrival; a preempted one keeps its place."""

    def __init__(self, *, by_priority: bool) -> None:
        self._by_priority = by_priority
        self._heap: list[tuple[SortKey, int]] = []
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
        """Return the first, or None when the queue is empty."""
        while self._heap:
            sequence = self._sequences.get(self._heap[0][1])
            if sequence is not None:
                return sequence
            heapq.heappop(self._heap)
        return None

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it stands."""
        del self._sequences[sequence.id]
        self.num_tokens -= len(sequence.tokens)
