"""Texts that wait for a step, in columns, and the order in which they run.

Axis suffixes: N texts, T tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo.steps.slot_fields import Ints

FEW_TEXTS = 32
"""Calls of up to so many texts share a queue."""
SHARED = -1
Places = slice | NDArray[np.intp] | NDArray[np.bool_]


class Texts(NamedTuple):
    """Columns with an entry for each text; for what they are see ``PooledCall``."""

    calls: NDArray[np.int64]
    numbers: Ints
    lengths: Ints
    seconds: Ints
    """``lengths`` where there is no second part."""
    skips: Ints
    widths: Ints
    unit_lengths: Ints
    starts: NDArray[np.int64]
    """Where the text's tokens begin among those that these columns go with."""

    def at(self, places: Places) -> Texts:
        """Some of the texts."""
        return Texts._make(column[places] for column in self)

    @property
    def num_texts(self) -> int:
        """Entries of each column."""
        return len(self.calls)


class TextBatch(NamedTuple):
    """Texts and their tokens, one text's behind the other's in the same order."""

    texts: Texts
    ids: Ints

    def halves(self) -> tuple[TextBatch, TextBatch]:
        """The first half of its texts, and the others."""
        middle = self.texts.num_texts // 2
        border = int(self.texts.starts[middle])
        first, last = self.texts.at(slice(middle)), self.texts.at(slice(middle, None))
        return (
            TextBatch(first, self.ids[:border]),
            TextBatch(last._replace(starts=last.starts - border), self.ids[border:]),
        )

    def some(self, places: Places) -> TextBatch:
        """Some of the texts, in that order."""
        texts = self.texts.at(places)
        ends = np.cumsum(texts.lengths, dtype=np.int64)
        starts = ends - texts.lengths
        num_tokens = int(ends[-1]) if len(ends) else 0
        tokens_T = np.repeat(texts.starts - starts, texts.lengths) + np.arange(num_tokens)
        return TextBatch(texts._replace(starts=starts), self.ids[tokens_T])


def join(batches: Iterable[TextBatch]) -> TextBatch:
    """One batch of several, in their order."""
    columns, ids, num_tokens = [], [], 0
    for batch in batches:
        columns.append(batch.texts._replace(starts=batch.texts.starts + num_tokens))
        ids.append(batch.ids)
        num_tokens += len(batch.ids)
    joined: Any = map(np.concatenate, zip(*columns, strict=True))
    return TextBatch(Texts._make(joined), np.concatenate(ids))


class TextQueue:
    """Texts in one order: as they came, or the longest first."""

    def __init__(self, num_served: int, *, by_length: bool) -> None:
        self.num_served = num_served
        """Tokens that have left it, so to speak: a new queue begins where the last one stands."""
        self._by_length = by_length
        self._waiting: TextBatch | None = None
        self._arrived: list[TextBatch] = []

    @property
    def num_texts(self) -> int:
        """Texts that wait in it."""
        batches = [*self._arrived, *([] if self._waiting is None else [self._waiting])]
        return sum(batch.texts.num_texts for batch in batches)

    def add(self, batch: TextBatch) -> None:
        """Put texts behind the others; they are sorted when a step is planned."""
        self._arrived.append(batch)

    def take(self, most_tokens: int, *, at_least_one: bool = False) -> list[TextBatch]:
        """The first texts, as many as have so many tokens together."""
        waiting = self._merge()
        if waiting is None:
            return []
        texts = waiting.texts
        ends = np.cumsum(texts.lengths[: max(most_tokens, 0) + 1], dtype=np.int64)
        count = int(np.searchsorted(ends, most_tokens, side="right"))
        count = max(count, 1) if at_least_one else count
        if not count:
            return []
        left = texts.at(slice(count, None))
        self._waiting = waiting._replace(texts=left) if left.num_texts else None
        taken = waiting.some(slice(count))
        self.num_served += len(taken.ids)
        return [taken]

    def drop(self, call: int) -> None:
        """Forget a call's texts."""
        waiting = self._merge()
        if waiting is not None:
            left = waiting.texts.at(waiting.texts.calls != call)
            self._waiting = waiting._replace(texts=left) if left.num_texts else None

    def _merge(self) -> TextBatch | None:
        if self._arrived:
            waiting = [] if self._waiting is None else [_without_gone(self._waiting)]
            merged, self._arrived = join([*waiting, *self._arrived]), []
            if self._by_length:
                order = np.argsort(-merged.texts.lengths, kind="stable")
                merged = merged._replace(texts=merged.texts.at(order))
            self._waiting = merged
        return self._waiting


def _without_gone(waiting: TextBatch) -> TextBatch:
    """Without the tokens before those of all texts that wait."""
    first = int(waiting.texts.starts.min())
    texts = waiting.texts._replace(starts=waiting.texts.starts - first)
    return TextBatch(texts, waiting.ids[first:])


class TextQueues:
    """Queues that take turns by tokens: small calls share one, each larger call has its own."""

    def __init__(self) -> None:
        self._queues: dict[int, TextQueue] = {}

    @property
    def num_texts(self) -> int:
        """Texts that wait."""
        return sum(queue.num_texts for queue in self._queues.values())

    def add(self, call: int, num_texts: int, batch: TextBatch) -> None:
        """Queue texts of a call that has so many in all."""
        is_small = num_texts <= FEW_TEXTS
        name = SHARED if is_small else call
        queue = self._queues.get(name)
        if queue is None:
            num_served = min((each.num_served for each in self._queues.values()), default=0)
            queue = self._queues[name] = TextQueue(num_served, by_length=not is_small)
        queue.add(batch)

    def drop(self, call: int) -> None:
        """Forget a call's texts."""
        self._queues.pop(call, None)
        if SHARED in self._queues:
            self._queues[SHARED].drop(call)
            self._forget_empty()

    def take(self, most_tokens: int) -> TextBatch | None:
        """Texts of the next step, the longest first; one that is longer than a step comes alone.

        Each queue gives its share if it can, and then what is left of the step. The one that has
        given least is the first, and gives one text at least.
        """
        if not self._queues:
            return None
        queues = sorted(self._queues.values(), key=lambda queue: queue.num_served)
        share, room = most_tokens // len(queues), most_tokens
        taken: list[TextBatch] = []
        for most in (share, most_tokens):
            for queue in queues:
                part = queue.take(min(most, room), at_least_one=not taken)
                room -= sum(len(each.ids) for each in part)
                taken += part
        self._forget_empty()
        batch = join(taken)
        if (np.diff(batch.texts.lengths) > 0).any():
            batch = batch.some(np.argsort(-batch.texts.lengths, kind="stable"))
        return batch

    def _forget_empty(self) -> None:
        self._queues = {name: queue for name, queue in self._queues.items() if queue.num_texts}
