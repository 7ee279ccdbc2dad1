"""Answers that are made in the background, and whose events are read from where they are kept.

A run belongs to the process that began it; all that others need stands in the database: whether it
still runs, its events, and that it is to end. So any worker shows, streams and cancels it.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from octavo.server.apis.responses.news import News
from octavo.server.apis.responses.store import LOST_SECONDS, IdTakenError, ResponseStore, end_row
from octavo.server.http.boundary import Gate
from octavo.server.http.errors import HttpError

if TYPE_CHECKING:
    from octavo.server.apis.responses.turn import Turn

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 0.25
"""How long a run may go on after it was cancelled; so often it also says that it is alive."""
_EVENT_END: Final = b"\n\n"


class BackgroundRun:
    """One answer in the making."""

    def __init__(self, store: ResponseStore, news: News, *, streams: bool) -> None:
        self.number = 0
        """In the database; set once it has begun."""
        self._store = store
        self._news = news
        self._streams = streams
        self._num_events = 0

    async def add(self, events: bytes, response: bytes | None) -> None:
        """Keep what is new; ``response`` is the answer if its status has changed."""
        first = self._count(events)
        if response is None and not self._streams:
            return

        def add(database: sqlite3.Connection) -> None:
            if response is not None:
                database.execute(
                    "UPDATE responses SET response = ? WHERE number = ? AND alive IS NOT NULL",
                    (response, self.number),
                )
            _add_events(database, self.number, first, events)

        await self._store.write(add)
        self._news.tell(self.number)

    async def finish(self, response: bytes, events: bytes) -> bool:
        """Keep the whole answer, unless it was cancelled; raises where it cannot be kept."""
        first = self._count(events)

        def finish(database: sqlite3.Connection) -> None:
            _add_events(database, self.number, first, events)
            end_row(database, self.number, response)
            self._store.make_room(database)

        await self._store.write(finish)
        return True

    def _count(self, events: bytes) -> int:
        first, self._num_events = self._num_events, self._num_events + events.count(_EVENT_END)
        return first


class BackgroundRuns:
    """The runs of this process."""

    def __init__(self, store: ResponseStore, gate: Gate) -> None:
        self._store = store
        self._gate = gate
        self._runner = uuid4().hex
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._news = News(store, self._tasks.__contains__)
        self._watcher: asyncio.Task[None] | None = None

    async def start(
        self,
        turn: Turn,
        response: bytes,
        *,
        streams: bool,
        work: Callable[[BackgroundRun], Coroutine[Any, Any, None]],
    ) -> None:
        """Keep the answer as it begins, and let ``work`` go on with it."""
        run = BackgroundRun(self._store, self._news, streams=streams)
        try:
            number = await self._store.keep(
                turn.owner,
                input=turn.items,
                response=response,
                after=turn.history,
                runner=self._runner,
                streams=streams,
            )
        except IdTakenError as error:
            raise HttpError(409, f"request_id: {error}", param="request_id") from None
        if number is None:
            raise HttpError(503, "the answer cannot be kept; the server's log says why")
        run.number = number
        self._tasks[number] = asyncio.create_task(self._run(run, work))
        if self._watcher is None or self._watcher.done():
            self._watcher = asyncio.create_task(self._watch())

    async def follow(self, owner: str, id: str, after: int) -> AsyncIterator[bytes]:
        """The events of an answer with numbers above ``after``, until it ends or is not kept."""
        yield b": \n\n"  # a comment, so that a stream without news begins, too
        number = await self._store.read(partial(_number, owner=owner, id=id))
        if number is None:
            return
        with self._news.reader(number):
            is_active = True
            while is_active:
                news = self._news.next(number)
                chunks, is_active = await self._store.read(
                    partial(_events, number=number, after=after)
                )
                for first, events in chunks:
                    each = events.split(_EVENT_END)[:-1]
                    new = each[max(0, after + 1 - first) :]
                    yield b"".join(event + _EVENT_END for event in new)
                    after = first + len(each) - 1
                if is_active:
                    await news.wait()

    async def _run(
        self, run: BackgroundRun, work: Callable[[BackgroundRun], Coroutine[Any, Any, None]]
    ) -> None:
        self._gate.num_inside += 1  # a server that drains waits for it
        try:
            await work(run)
        except sqlite3.Error as error:  # nobody says any more that it is alive
            log.error("an answer of the background is lost: %s", error)
        finally:
            self._gate.num_inside -= 1
            del self._tasks[run.number]
            self._news.tell(run.number)

    async def _watch(self) -> None:
        """Say that the runs are alive, and end those that were cancelled or deleted."""
        while self._tasks:
            begun = dict(self._tasks)
            try:
                active = await self._store.write(partial(self._look, list(begun)))
            except sqlite3.Error as error:
                log.warning("the store of answers does not answer: %s", error)
                active = set(begun)
            for number, task in begun.items():
                if number not in active:
                    task.cancel()
            await asyncio.sleep(LOOK_SECONDS)

    def _look(self, numbers: list[int], database: sqlite3.Connection) -> set[int]:
        database.executemany(
            "UPDATE responses SET alive = ? WHERE number = ? AND alive IS NOT NULL",
            [(time.time(), number) for number in numbers],
        )
        rows = database.execute("SELECT number FROM responses WHERE runner = ?", (self._runner,))
        return {number for (number,) in rows}


def _add_events(database: sqlite3.Connection, number: int, first: int, events: bytes) -> None:
    """Add events, the first of this number, where they are wanted and the run has not ended."""
    database.execute(
        "INSERT INTO events SELECT number, ?, ? FROM responses "
        "WHERE number = ? AND streams AND alive IS NOT NULL",
        (first, events, number),
    )


def _number(database: sqlite3.Connection, owner: str, id: str) -> int | None:
    row = database.execute(
        "SELECT number FROM responses WHERE owner = ? AND id = ?", (owner, id)
    ).fetchone()
    return None if row is None else row[0]


def _events(
    database: sqlite3.Connection, number: int, after: int
) -> tuple[list[tuple[int, bytes]], bool]:
    """What has come after an event of that number, and whether more will come."""
    row = database.execute(
        "SELECT alive > ? FROM responses WHERE number = ?", (time.time() - LOST_SECONDS, number)
    ).fetchone()
    if row is None:
        return [], False
    (is_active,) = row
    chunks = database.execute(
        "SELECT first, events FROM events WHERE number = ? AND first >= "
        "(SELECT coalesce(max(first), 0) FROM events WHERE number = ? AND first <= ?) "
        "ORDER BY first",
        (number, number, after + 1),
    ).fetchall()
    return [chunk for chunk in chunks if chunk[0] + chunk[1].count(_EVENT_END) > after + 1], bool(
        is_active
    )
