"""Places of a pool on the device, on the scheduler's side: which of them are free."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from typing import Protocol, TypeVar

import numpy as np

from octavo.steps.loads import Span
from octavo.steps.slot_fields import Ints

P = TypeVar("P")
"""The places of one resident."""


class Places(Protocol[P]):
    """Where the residents of one pool lie."""

    num_places: int
    """All that can be taken."""

    def fits(self, count: int, beside: Iterable[P]) -> bool:
        """Whether there is room for so many while only ``beside`` are taken."""
        ...

    def take(self, count: int) -> P | None:
        """So many free places, until they are given back; None: there is no room."""
        ...

    def give(self, places: P) -> None:
        """Take places back."""
        ...


class Spans:
    """Consecutive places: the first gap that is large enough is taken."""

    def __init__(self, num_places: int, *, first: int = 0) -> None:
        """Places below ``first`` are nobody's."""
        self.num_places = num_places - first
        self._first = first
        self._end = num_places
        self._taken: list[Span] = []
        """In order."""

    def fits(self, count: int, beside: Iterable[Span]) -> bool:
        """Whether a gap is large enough while only ``beside`` are taken."""
        return self._gap_for(count, sorted(beside)) is not None

    def take(self, count: int) -> Span | None:
        """A span of free places, until it is given back."""
        first = self._gap_for(count, self._taken)
        if first is None:
            return None
        span = Span(first, count)
        insort(self._taken, span)
        return span

    def give(self, places: Span) -> None:
        """Take a span back."""
        self._taken.remove(places)

    def _gap_for(self, count: int, taken: Iterable[Span]) -> int | None:
        free = self._first
        for first, length in taken:
            if first - free >= count:
                return free
            free = first + length
        return free if self._end - free >= count else None


class Scattered:
    """Places anywhere: those that have been free for longest are taken."""

    def __init__(self, num_places: int) -> None:
        self.num_places = num_places
        self._free: Ints = np.arange(num_places, dtype=np.int32)

    def fits(self, count: int, beside: Iterable[Ints]) -> bool:
        """Whether so many are free while only ``beside`` are taken."""
        return count <= self.num_places - sum(map(len, beside))

    def take(self, count: int) -> Ints | None:
        """So many free places, until they are given back."""
        if len(self._free) < count:
            return None
        taken, self._free = self._free[:count], self._free[count:]
        return taken

    def give(self, places: Ints) -> None:
        """Take places back."""
        self._free = np.append(self._free, places)
