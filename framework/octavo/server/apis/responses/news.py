"""Wakes those who read the events of answers that are in the making.

What this process makes is told to them. Of what other processes make the database alone knows: it
is asked for all readers at once, the less often the longer nothing came.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final, NamedTuple

from octavo.server.apis.responses.store import LOST_SECONDS, ResponseStore

log = logging.getLogger(__name__)

SOONEST_SECONDS: Final = 0.03
"""How late a reader of another process's answer is while that goes on."""
LATEST_SECONDS: Final = 0.25
"""How late such a reader is where nothing came for a while."""


class _State(NamedTuple):
    """How far an answer is."""

    last: int
    """The number of the first event of the chunk that came last."""
    is_active: bool


class News:
    """Readers by the answer's number in the database; for one event loop."""

    def __init__(self, store: ResponseStore, is_own: Callable[[int], bool]) -> None:
        """``is_own``: whether this process makes the answer, and calls ``tell`` of it."""
        self._store = store
        self._is_own = is_own
        self._readers: Counter[int] = Counter()
        self._told: dict[int, asyncio.Event] = {}
        """Events by answer, until the next news; all its readers wait for the same one."""
        self._watcher: asyncio.Task[None] | None = None

    @contextmanager
    def reader(self, number: int) -> Iterator[None]:
        """Have what other processes write of this answer looked for."""
        self._readers[number] += 1
        try:
            yield
        finally:
            self._readers[number] -= 1
            if not self._readers[number]:
                del self._readers[number]
                self._told.pop(number, None)

    def next(self, number: int) -> asyncio.Event:
        """What is set once there is more of an answer than there is now; ask before reading."""
        if not self._is_own(number) and (self._watcher is None or self._watcher.done()):
            self._watcher = asyncio.create_task(self._watch())
        return self._told.setdefault(number, asyncio.Event())

    def tell(self, number: int) -> None:
        """Wake the readers of an answer: there is more of it, or it has ended."""
        told = self._told.pop(number, None)
        if told is not None:
            told.set()

    async def _watch(self) -> None:
        """Look at the answers of other processes while there are readers of them."""
        seen: dict[int, _State | None] = {}
        wait = SOONEST_SECONDS
        while others := [number for number in self._readers if not self._is_own(number)]:
            try:
                states = await self._store.read(partial(_states, others))
            except sqlite3.Error as error:
                log.warning("the store of answers does not answer: %s", error)
                states = seen
            news = [each for each in others if each not in seen or seen[each] != states.get(each)]
            for number in news:
                self.tell(number)
            seen = {number: states.get(number) for number in others}
            wait = SOONEST_SECONDS if news else min(2 * wait, LATEST_SECONDS)
            await asyncio.sleep(wait)


def _states(numbers: Iterable[int], database: sqlite3.Connection) -> dict[int, _State | None]:
    """How far each of these answers is; those that are no longer kept are left out."""
    listed = ",".join(map(str, numbers))
    rows = database.execute(
        "SELECT number, (SELECT coalesce(max(first), -1) FROM events e WHERE e.number = r.number), "
        f"coalesce(alive > ?, 0) FROM responses r WHERE number IN ({listed})",
        (time.time() - LOST_SECONDS,),
    )
    return {number: _State(last, bool(is_active)) for number, last, is_active in rows}
