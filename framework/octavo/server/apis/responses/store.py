"""Where answers of /v1/responses are kept: one SQLite database, in memory or in a file.

Several processes may use one file. What is kept is bounded, and what was not used for longest goes
first; a conversation that goes on is used with each answer, from its begin.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from octavo.config.server import ServeConfig
from octavo.errors import ConfigError

log = logging.getLogger(__name__)

IN_MEMORY: Final = ":memory:"
WAIT_SECONDS: Final = 10.0
"""For another process to end its transaction."""
RETRY_SECONDS: Final = 0.02
LOST_SECONDS: Final = 60.0
"""An answer of which its process has said nothing for so long has failed with it."""
_VERSION: Final = 1
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS responses (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    owner TEXT NOT NULL,
    id TEXT NOT NULL,
    previous INTEGER,
    input BLOB NOT NULL,
    response BLOB NOT NULL,
    used REAL NOT NULL,
    streams INTEGER NOT NULL,
    runner TEXT,
    alive REAL,
    UNIQUE (owner, id)
);
CREATE INDEX IF NOT EXISTS by_use ON responses (alive IS NOT NULL, used);
CREATE INDEX IF NOT EXISTS by_runner ON responses (runner);
CREATE TABLE IF NOT EXISTS items (
    owner TEXT NOT NULL,
    id TEXT NOT NULL,
    number INTEGER NOT NULL REFERENCES responses ON DELETE CASCADE,
    item BLOB NOT NULL,
    PRIMARY KEY (owner, id)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_response ON items (number);
CREATE TABLE IF NOT EXISTS events (
    number INTEGER NOT NULL REFERENCES responses ON DELETE CASCADE,
    first INTEGER NOT NULL,
    events BLOB NOT NULL,
    PRIMARY KEY (number, first)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS total (count INTEGER NOT NULL);
INSERT INTO total SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM total);
CREATE TRIGGER IF NOT EXISTS added AFTER INSERT ON responses BEGIN
    UPDATE total SET count = count + 1;
END;
CREATE TRIGGER IF NOT EXISTS removed AFTER DELETE ON responses BEGIN
    UPDATE total SET count = count - 1;
END;
"""
_CHAIN: Final = """
WITH RECURSIVE chain (number, previous, is_active, bytes, depth) AS (
    SELECT number, previous, alive IS NOT NULL, length(input) + length(response), 0
    FROM responses WHERE owner = ? AND id = ?
    UNION ALL
    SELECT r.number, r.previous, alive IS NOT NULL, length(r.input) + length(r.response), depth + 1
    FROM responses r JOIN chain ON r.number = chain.previous
)
SELECT number, previous, is_active, bytes FROM chain ORDER BY depth DESC
"""
"""A response and those that it goes on from, the first first."""
_encode: Final = msgspec.json.encode
_decode: Final[Callable[[bytes], Any]] = msgspec.json.decode
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """An answer and what it answers."""

    number: int
    """In the database."""
    input: list[dict[str, Any]]
    """Without that of the answers before it."""
    response: bytes
    """JSON of the API's Response."""
    streams: bool
    """Whether its events are kept."""
    is_active: bool
    """Whether it is in the making."""
    is_lost: bool
    """Whether nobody goes on with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A conversation up to an answer, which another one goes on from."""

    number: int
    """The last answer's, in the database."""
    items: list[dict[str, Any]]
    """Input and output of each answer in turn."""


class NotKeptError(Exception):
    """There is no such answer, or a part of its conversation is gone; the text says which."""


class IdTakenError(Exception):
    """The answer that is kept under this id is still in the making."""


class ResponseStore:
    """Answers by owner and id; all methods but the first may be awaited at once."""

    def __init__(self, path: str, *, max_responses: int, max_bytes: int) -> None:
        """Opens the database, which makes the file if it is not there."""
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        # SQLite's calls block; one thread keeps them off the event loop, and in order.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="responses")
        try:
            self._database = _opened(path)
        except (sqlite3.Error, OSError) as error:
            raise ConfigError(f"responses_store={path!r} cannot be used: {error}") from error

    async def keep(
        self,
        owner: str,
        *,
        input: list[dict[str, Any]],
        response: bytes,
        after: History | None,
        runner: str | None = None,
        streams: bool = False,
    ) -> int | None:
        """Keep an answer, JSON of the API's Response, in the place of one of the same id.

        Returns its number in the database. One that cannot be written down, as on a full disk, has
        none, and the log says why. Raises IdTakenError where the one of the same id is in the
        making. A ``runner`` goes on with it, and keeps its events if it ``streams``.
        """
        given = _encode(input)
        num_bytes = len(given) + len(response)
        if num_bytes > self._max_bytes:
            log.warning("an answer of %d bytes is longer than all that may be kept", num_bytes)
            return None
        id = _decode(response)["id"]
        after_number = None if after is None else after.number

        def keep(database: sqlite3.Connection) -> int | None:
            now = time.time()
            in_the_making = database.execute(
                "SELECT 1 FROM responses WHERE owner = ? AND id = ? AND alive >= ?",
                (owner, id, now - LOST_SECONDS),
            ).fetchone()
            if in_the_making:
                raise IdTakenError(f"{id[:128]!r} is the id of an answer that is in the making")
            database.execute("DELETE FROM responses WHERE owner = ? AND id = ?", (owner, id))
            number = database.execute(
                "INSERT INTO responses (owner, id, previous, input, response, used, streams, "
                "runner, alive) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (owner, id, after_number, given, response, now, streams, runner, now),
            ).lastrowid
            assert number is not None  # a row was inserted
            if runner is None:
                end_row(database, number, response)
            self.make_room(database)
            is_kept = database.execute(
                "SELECT 1 FROM responses WHERE number = ?", (number,)
            ).fetchone()
            return number if is_kept else None  # it may be what there is no room for

        try:
            return await self.write(keep)
        except sqlite3.Error as error:
            log.error("an answer is not kept: %s", error)
            return None

    async def find(self, owner: str, id: str) -> Kept | None:
        """Return the owner's answer of that id."""
        kept = await self.read(lambda database: _find(database, owner, id))
        if kept is not None and kept.is_lost:
            failed = {"code": "server_error", "message": "the process that made it has ended"}
            return await self.settle(owner, id, status="failed", error=failed)
        return kept

    async def settle(self, owner: str, id: str, **changes: Any) -> Kept | None:
        """End an answer that is in the making, with these changes; return what is kept."""

        def settle(database: sqlite3.Connection) -> Kept | None:
            kept = _find(database, owner, id)
            if kept is None or not kept.is_active:
                return kept
            end_row(database, kept.number, _encode({**_decode(kept.response), **changes}))
            return _find(database, owner, id)

        return await self.write(settle)

    async def history(self, owner: str, id: str, max_bytes: int) -> History:
        """Return the conversation up to an answer; raises NotKeptError, also where it is longer."""
        return await self.write(lambda database: _history(database, owner, id, max_bytes))

    async def item(self, owner: str, id: str) -> bytes | None:
        """Return an item of an answer's output, as JSON."""
        row = await self.read(
            lambda database: database.execute(
                "SELECT item FROM items WHERE owner = ? AND id = ?", (owner, id)
            ).fetchone()
        )
        found: bytes | None = None if row is None else row[0]
        return found

    async def delete(self, owner: str, id: str) -> bool:
        """Drop an answer; whether it was there."""
        dropped = await self.write(
            lambda database: database.execute(
                "DELETE FROM responses WHERE owner = ? AND id = ?", (owner, id)
            )
        )
        return dropped.rowcount > 0

    async def sizes(self) -> tuple[int, int]:
        """Return how many answers are kept, and the bytes that they take."""
        return await self.read(_sizes)

    async def read(self, call: Callable[[sqlite3.Connection], Result]) -> Result:
        """Call in the database's thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, call, self._database)

    async def write(self, call: Callable[[sqlite3.Connection], Result]) -> Result:
        """Do the same in a transaction that no other process is in, whole or undone."""

        def transact(database: sqlite3.Connection) -> Result:
            database.execute("BEGIN IMMEDIATE")
            with database:
                return call(database)

        return await self.read(transact)

    def close(self) -> None:
        """Close the database once its calls have ended."""
        self._thread.submit(self._database.close)
        self._thread.shutdown()

    def make_room(self, database: sqlite3.Connection) -> None:
        """Drop what was not used for longest until the rest is within bounds."""
        while True:
            count, num_bytes = _sizes(database)
            if not count or (count <= self._max_responses and num_bytes <= self._max_bytes):
                return
            database.execute(
                "DELETE FROM responses WHERE number = (SELECT number FROM responses "
                "ORDER BY alive IS NOT NULL, used, number LIMIT 1)"
            )


def end_row(database: sqlite3.Connection, number: int, response: bytes) -> None:
    """Write down an answer that is in the making as it has become, with what it consists of."""
    row = database.execute(
        "SELECT owner FROM responses WHERE number = ? AND alive IS NOT NULL", (number,)
    ).fetchone()
    if row is None:
        return
    items = [(*row, item["id"], number, _encode(item)) for item in _decode(response)["output"]]
    database.executemany("INSERT OR REPLACE INTO items VALUES (?, ?, ?, ?)", items)
    database.execute(
        "UPDATE responses SET response = ?, runner = NULL, alive = NULL WHERE number = ?",
        (response, number),
    )


def _find(database: sqlite3.Connection, owner: str, id: str) -> Kept | None:
    row = database.execute(
        "SELECT number, input, response, streams, alive FROM responses WHERE owner = ? AND id = ?",
        (owner, id),
    ).fetchone()
    if row is None:
        return None
    number, given, response, streams, alive = row
    return Kept(
        number=number,
        input=_decode(given),
        response=response,
        streams=bool(streams),
        is_active=alive is not None,
        is_lost=alive is not None and time.time() - alive > LOST_SECONDS,
    )


def _history(database: sqlite3.Connection, owner: str, id: str, max_bytes: int) -> History:
    links = database.execute(_CHAIN, (owner, id)).fetchall()
    if not links:
        raise NotKeptError(f"no response of the id {id[:128]!r} is kept")
    if links[0][1] is not None:
        raise NotKeptError(f"the response {id[:128]!r} goes on from one that is no longer kept")
    if links[-1][2]:
        raise NotKeptError(f"the response {id[:128]!r} is not complete yet")
    if sum(num_bytes for *_, num_bytes in links) > max_bytes:
        raise NotKeptError(f"the conversation up to {id[:128]!r} has more than {max_bytes} bytes")
    items = []
    now = time.time()
    for number, *_ in links:
        given, response = database.execute(
            "SELECT input, response FROM responses WHERE number = ?", (number,)
        ).fetchone()
        items += [*_decode(given), *_decode(response)["output"]]
        database.execute("UPDATE responses SET used = ? WHERE number = ?", (now, number))
    return History(number=links[-1][0], items=items)


def _sizes(database: sqlite3.Connection) -> tuple[int, int]:
    """How many answers there are, and what the database takes, as SQLite itself counts it."""
    (count,) = database.execute("SELECT count FROM total").fetchone()
    pages, free, page_bytes = (
        database.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("page_count", "freelist_count", "page_size")
    )
    return count, (pages - free) * page_bytes


def open_store(config: ServeConfig) -> ResponseStore | None:
    """The store that the operator asks for; None: no answer is kept."""
    if config.max_stored_responses == 0:
        return None
    return ResponseStore(
        config.responses_store or IN_MEMORY,
        max_responses=config.max_stored_responses,
        max_bytes=int(config.max_stored_responses_mib * 2**20),
    )


def _opened(path: str) -> sqlite3.Connection:
    """The database with its tables; nobody but this user may read a file that is made here."""
    if path != IN_MEMORY:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    database = sqlite3.connect(
        path, timeout=WAIT_SECONDS, isolation_level=None, check_same_thread=False
    )
    with closing(database.execute("PRAGMA user_version")) as cursor:
        (version,) = cursor.fetchone()
    if version not in (0, _VERSION):
        raise sqlite3.DatabaseError(f"its tables are of another release (version {version})")
    # A crash of the machine may lose the last answers, never the file.
    _write_ahead(database)
    for pragma in ("synchronous = NORMAL", "foreign_keys = ON"):
        database.execute(f"PRAGMA {pragma}")
    database.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version = {_VERSION}; COMMIT;")
    return database


def _write_ahead(database: sqlite3.Connection) -> None:
    """Let a log of the database take what is written; SQLite itself does not wait with this."""
    end = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            database.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > end:
                raise
            time.sleep(RETRY_SECONDS)
