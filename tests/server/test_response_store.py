"""The database of answers: its bounds, and several processes on one file."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import stat
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from octavo.errors import ConfigError
from octavo.server.apis.responses.store import IN_MEMORY, History, NotKeptError, ResponseStore

MOST = 2**20


@pytest.fixture
def store() -> Iterator[ResponseStore]:
    made = ResponseStore(IN_MEMORY, max_responses=4, max_bytes=2**20)
    yield made
    made.close()


async def keep(store: ResponseStore, id: str, after: History | None = None, text: str = "") -> None:
    response = {"id": id, "output": [{"id": f"msg_{id}", "content": text}]}
    await store.keep(
        "", input=[{"content": id}], response=json.dumps(response).encode(), after=after
    )


async def kept(store: ResponseStore, ids: str) -> str:
    return "".join([id for id in ids if await store.find("", id) is not None])


async def test_what_was_not_used_for_longest_goes_first(store) -> None:
    for id in "abcd":
        await keep(store, id)
    await store.history("", "a", MOST)
    await keep(store, "e")
    assert await kept(store, "abcde") == "acde"
    assert (await store.sizes())[0] == 4
    assert await store.item("", "msg_b") is None


async def test_bytes_are_bounded_and_one_that_is_too_long_drops_no_other(store) -> None:
    empty = await store.sizes()
    for id in "abc":  # each is there twice: whole, and as an item that may be referred to
        await keep(store, id, text="x" * 200_000)
    assert await kept(store, "abc") == "bc"
    assert 800_000 < (await store.sizes())[1] < MOST
    await keep(store, "d", text="x" * MOST)
    assert await kept(store, "abcd") == "bc"
    for id in "bc":
        await store.delete("", id)
    assert await store.sizes() == empty


async def test_a_bound_below_what_an_empty_database_takes_keeps_nothing() -> None:
    store = ResponseStore(IN_MEMORY, max_responses=4, max_bytes=4096)
    await keep(store, "a")
    assert await kept(store, "a") == ""
    store.close()


async def test_a_conversation_has_every_turn_or_is_an_error(store) -> None:
    after = None
    for id in "abc":
        await keep(store, id, after)
        after = await store.history("", id, MOST)
    items = (await store.history("", "c", MOST)).items
    assert [each.get("id", each["content"]) for each in items] == [
        *("a", "msg_a", "b", "msg_b", "c", "msg_c")
    ]
    with pytest.raises(NotKeptError, match="more than 100 bytes"):
        await store.history("", "c", 100)
    await store.delete("", "a")
    with pytest.raises(NotKeptError, match="no longer kept"):
        await store.history("", "c", MOST)


async def test_an_id_that_is_given_again_makes_no_circle(store) -> None:
    await keep(store, "a")
    await keep(store, "a", await store.history("", "a", MOST))
    with pytest.raises(NotKeptError, match="no longer kept"):
        await store.history("", "a", MOST)
    assert (await store.sizes())[0] == 1


async def test_several_stores_write_into_one_file(tmp_path: Path) -> None:
    path = tmp_path / "answers"
    stores = [ResponseStore(str(path), max_responses=50, max_bytes=MOST) for _ in range(4)]
    await asyncio.gather(*(keep(stores[n % 4], f"r{n}") for n in range(80)))
    assert {await each.sizes() for each in stores} == {await stores[0].sizes()}
    assert (await stores[0].sizes())[0] == 50
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for each in stores:
        each.close()


def test_a_store_waits_for_another_that_makes_its_tables(tmp_path: Path) -> None:
    path = tmp_path / "answers"
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        end = threading.Timer(0.1, other.execute, ["COMMIT"])
        end.start()
        ResponseStore(str(path), max_responses=4, max_bytes=MOST).close()
        end.join()


@pytest.mark.parametrize("text", ["no database, but a text that is long enough" * 3])
def test_a_file_of_another_kind_is_an_error_at_once(tmp_path: Path, text: str) -> None:
    path: Any = tmp_path / "answers"
    path.write_text(text)
    for each in (path, tmp_path / "no" / "folder"):
        with pytest.raises(ConfigError, match="responses_store="):
            ResponseStore(str(each), max_responses=1, max_bytes=1)
