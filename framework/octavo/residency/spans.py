"""Consecutive places of a pool on the device, on the scheduler's side."""

from __future__ import annotations

from collections.abc import Sequence

Span = tuple[int, int]
"""The first place, and how many."""


class Spans:
    """Free places: the first gap that is large enough is taken."""

    def __init__(self, num_places: int) -> None:
        self.num_places = num_places
        self._taken: list[Span] = []
        """In order."""

    def gap_for(self, length: int, among: Sequence[Span] | None = None) -> int | None:
        """The first place of a gap; None where there is none.

        ``among`` are the spans that count as taken, in order, if not all.
        """
        free = 0
        for first, taken in self._taken if among is None else among:
            if first - free >= length:
                return free
            free = first + taken
        return free if self.num_places - free >= length else None

    def take(self, length: int) -> int | None:
        """The first of so many places, until they are given back."""
        first = self.gap_for(length)
        if first is not None:
            self._taken.append((first, length))
            self._taken.sort()
        return first

    def give(self, span: Span) -> None:
        """Take places back."""
        self._taken.remove(span)
