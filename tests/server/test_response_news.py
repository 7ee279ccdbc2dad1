"""Readers of events: one look at the database for all of them, and none for what is made here."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from octavo.server.apis.responses import news as response_news
from octavo.server.apis.responses.runs import LOOK_SECONDS, BackgroundRun, BackgroundRuns
from octavo.server.apis.responses.store import ResponseStore
from octavo.server.apis.responses.tools import ResponseTools
from octavo.server.apis.responses.turn import Turn
from octavo.server.http.boundary import Gate
from octavo.server.http.errors import HttpError

TURN = Turn(owner="", items=[], history=None, messages=[], tools=ResponseTools())
READERS = 20


class CountingStore(ResponseStore):
    """Notes when something is asked of the database."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.asked_at: list[float] = []

    async def read(self, call: Callable[[Any], Any]) -> Any:
        self.asked_at.append(time.monotonic())
        return await super().read(call)

    def is_asked_rarely(self, seconds: float) -> bool:
        """Whether the last two pauses were as long as this: of readers, none asks by itself."""
        pauses = [later - earlier for earlier, later in pairwise(self.asked_at[-3:])]
        return len(pauses) == 2 and min(pauses) >= seconds


@pytest.fixture
def stores(tmp_path: Path) -> tuple[CountingStore, CountingStore]:
    """Two processes' views of one file."""
    path = str(tmp_path / "store")
    first, second = (CountingStore(path, max_responses=9, max_bytes=2**20) for _ in range(2))
    return first, second


async def text_of(events: AsyncIterator[bytes]) -> bytes:
    return b"".join([event async for event in events])


async def until(holds: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def begin(runs: BackgroundRuns, id: str, work: Any) -> None:
    await runs.start(TURN, json.dumps({"id": id}).encode(), streams=True, work=work)


async def test_waiting_readers_ask_nothing_of_what_this_process_makes(stores) -> None:
    store, _ = stores
    runs = BackgroundRuns(store, Gate())
    may_go_on = asyncio.Event()

    async def work(run: BackgroundRun) -> None:
        await run.add(b"data: 1\n\n", None)
        await may_go_on.wait()
        await run.finish(b'{"id": "a", "output": []}', b"data: 2\n\n")

    await begin(runs, "a", work)
    readers = [asyncio.create_task(text_of(runs.follow("", "a", -1))) for _ in range(READERS)]
    await until(lambda: len(store.asked_at) > 2 * READERS)
    await until(lambda: store.is_asked_rarely(LOOK_SECONDS))  # whether the run was cancelled
    may_go_on.set()
    assert await asyncio.gather(*readers) == [b": \n\ndata: 1\n\ndata: 2\n\n"] * READERS


async def test_readers_of_another_process_share_one_look_that_grows_rare(stores) -> None:
    maker, store = stores
    runs, others = BackgroundRuns(maker, Gate()), BackgroundRuns(store, Gate())
    may_go_on = asyncio.Event()

    async def work(run: BackgroundRun) -> None:
        await run.add(b"data: 1\n\n", None)
        await may_go_on.wait()
        for number in range(2, 9):
            await run.add(b"data: %d\n\n" % number, None)
            await asyncio.sleep(0.04)
        await run.finish(b'{"id": "a", "output": []}', b"data: 9\n\n")

    await begin(runs, "a", work)
    readers = [asyncio.create_task(text_of(others.follow("", "a", -1))) for _ in range(READERS)]
    await until(lambda: store.is_asked_rarely(response_news.LATEST_SECONDS))
    may_go_on.set()
    wanted = b": \n\n" + b"".join(b"data: %d\n\n" % number for number in range(1, 10))
    assert await asyncio.gather(*readers) == [wanted] * READERS


@pytest.mark.parametrize("is_own", [True, False])
async def test_readers_end_with_an_answer_that_is_deleted(stores, is_own) -> None:
    store, other = stores
    runs = BackgroundRuns(store, Gate())
    followed = runs if is_own else BackgroundRuns(other, Gate())

    async def work(run: BackgroundRun) -> None:
        await run.add(b"data: 1\n\n", None)
        await asyncio.Event().wait()

    await begin(runs, "a", work)
    reader = asyncio.create_task(text_of(followed.follow("", "a", 0)))
    await until(lambda: followed._news._told)
    assert await store.delete("", "a")
    assert await asyncio.wait_for(reader, 10) == b": \n\n"


async def test_an_answer_in_the_making_keeps_its_id(stores) -> None:
    store, other = stores
    runs = BackgroundRuns(store, Gate())
    may_end = asyncio.Event()

    async def work(run: BackgroundRun) -> None:
        await may_end.wait()
        await run.finish(b'{"id": "a", "output": []}', b"data: 1\n\n")

    await begin(runs, "a", work)
    for each in (runs, BackgroundRuns(other, Gate())):
        with pytest.raises(HttpError, match="in the making") as raised:
            await begin(each, "a", work)
        assert raised.value.status == 409
    may_end.set()
    assert await text_of(runs.follow("", "a", -1)) == b": \n\ndata: 1\n\n"
    await begin(runs, "a", work)  # the old one has ended, and makes place
    assert await text_of(runs.follow("", "a", -1)) == b": \n\ndata: 1\n\n"
