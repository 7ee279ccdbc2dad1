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
_VERSION: Final = 1
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS responses (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    owner TEXT NOT NULL,
    id TEXT NOT NULL,
    previous INTEGER,
    input BLOB NOT NULL,
    response BLOB NOT NULL,
    bytes INTEGER NOT NULL,
    used REAL NOT NULL,
    UNIQUE (owner, id)
);
CREATE INDEX IF NOT EXISTS by_use ON responses (used);
CREATE TABLE IF NOT EXISTS items (
    owner TEXT NOT NULL,
    id TEXT NOT NULL,
    number INTEGER NOT NULL REFERENCES responses ON DELETE CASCADE,
    item BLOB NOT NULL,
    PRIMARY KEY (owner, id)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_response ON items (number);
CREATE TABLE IF NOT EXISTS totals (count INTEGER NOT NULL, bytes INTEGER NOT NULL);
INSERT INTO totals SELECT 0, 0 WHERE NOT EXISTS (SELECT 1 FROM totals);
CREATE TRIGGER IF NOT EXISTS added AFTER INSERT ON responses BEGIN
    UPDATE totals SET count = count + 1, bytes = bytes + new.bytes;
END;
CREATE TRIGGER IF NOT EXISTS removed AFTER DELETE ON responses BEGIN
    UPDATE totals SET count = count - 1, bytes = bytes - old.bytes;
END;
"""
_CHAIN: Final = """
WITH RECURSIVE chain (number, previous, bytes, depth) AS (
    SELECT number, previous, bytes, 0 FROM responses WHERE owner = ? AND id = ?
    UNION ALL
    SELECT r.number, r.previous, r.bytes, depth + 1
    FROM responses r JOIN chain ON r.number = chain.previous
)
SELECT number, previous, bytes FROM chain ORDER BY depth DESC
"""
"""A response and those that it goes on from, the first first."""
_encode: Final = msgspec.json.encode
_decode: Final[Callable[[bytes], Any]] = msgspec.json.decode
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """An answer and what it answers."""

    input: list[dict[str, Any]]
    """Without that of the answers before it."""
    response: bytes
    """JSON of the API's Response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A conversation up to an answer, which another one goes on from."""

    number: int
    """The last answer's, in the database."""
    items: list[dict[str, Any]]
    """Input and output of each answer in turn."""


class NotKeptError(Exception):
    """There is no such answer, or a part of its conversation is gone; the text says which."""


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
    ) -> None:
        """Keep an answer, JSON of the API's Response, in the place of one of the same id.

        One that cannot be written down, as on a full disk, is not kept, and the log says why.
        """
        try:
            await self._call(lambda: self._keep(owner, input, response, after))
        except sqlite3.Error as error:
            log.error("an answer is not kept: %s", error)

    async def find(self, owner: str, id: str) -> Kept | None:
        """Return the owner's answer of that id."""
        return await self._call(lambda: self._find(owner, id))

    async def history(self, owner: str, id: str, max_bytes: int) -> History:
        """Return the conversation up to an answer; raises NotKeptError, also where it is longer."""
        return await self._call(lambda: self._history(owner, id, max_bytes))

    async def item(self, owner: str, id: str) -> dict[str, Any] | None:
        """Return an item of an answer's output."""
        return await self._call(lambda: self._item(owner, id))

    async def delete(self, owner: str, id: str) -> bool:
        """Drop an answer; whether it was there."""
        return await self._call(lambda: self._delete(owner, id))

    async def sizes(self) -> tuple[int, int]:
        """Return how many answers are kept, and their bytes."""
        return await self._call(self._sizes)

    def close(self) -> None:
        """Close the database once its calls have ended."""
        self._thread.submit(self._database.close)
        self._thread.shutdown()

    async def _call(self, call: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    def _keep(
        self, owner: str, input: list[dict[str, Any]], response: bytes, after: History | None
    ) -> None:
        given = _encode(input)
        made = _decode(response)
        outputs = [(owner, item["id"], _encode(item)) for item in made["output"]]
        num_bytes = len(given) + len(response) + sum(len(item) for *_, item in outputs)
        row = (
            owner, made["id"], None if after is None else after.number, given, response, num_bytes,
            time.time(),
        )  # fmt: skip
        if num_bytes > self._max_bytes:
            log.warning("an answer of %d bytes is longer than all that may be kept", num_bytes)
            return
        with self._writing() as database:
            database.execute("DELETE FROM responses WHERE owner = ? AND id = ?", row[:2])
            number = database.execute(
                "INSERT INTO responses (owner, id, previous, input, response, bytes, used) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                row,
            ).lastrowid
            database.executemany(
                "INSERT OR REPLACE INTO items (owner, id, number, item) VALUES (?, ?, ?, ?)",
                [(owner, id, number, item) for owner, id, item in outputs],
            )
            self._make_room(database)

    def _make_room(self, database: sqlite3.Connection) -> None:
        while True:
            count, num_bytes = self._sizes()
            if count <= self._max_responses and num_bytes <= self._max_bytes:
                return
            database.execute(
                "DELETE FROM responses WHERE number = "
                "(SELECT number FROM responses ORDER BY used, number LIMIT 1)"
            )

    def _find(self, owner: str, id: str) -> Kept | None:
        row = self._database.execute(
            "SELECT input, response FROM responses WHERE owner = ? AND id = ?", (owner, id)
        ).fetchone()
        return None if row is None else Kept(input=_decode(row[0]), response=row[1])

    def _history(self, owner: str, id: str, max_bytes: int) -> History:
        with self._writing() as database:
            links = database.execute(_CHAIN, (owner, id)).fetchall()
            if not links:
                raise NotKeptError(f"no response of the id {id[:128]!r} is kept")
            if links[0][1] is not None:
                raise NotKeptError(
                    f"the response {id[:128]!r} goes on from one that is no longer kept"
                )
            if sum(num_bytes for *_, num_bytes in links) > max_bytes:
                raise NotKeptError(
                    f"the conversation up to {id[:128]!r} has more than {max_bytes} bytes"
                )
            items = []
            now = time.time()
            for number, *_ in links:
                given, response = database.execute(
                    "SELECT input, response FROM responses WHERE number = ?", (number,)
                ).fetchone()
                items += [*_decode(given), *_decode(response)["output"]]
                database.execute("UPDATE responses SET used = ? WHERE number = ?", (now, number))
        return History(number=links[-1][0], items=items)

    def _item(self, owner: str, id: str) -> dict[str, Any] | None:
        row = self._database.execute(
            "SELECT item FROM items WHERE owner = ? AND id = ?", (owner, id)
        ).fetchone()
        found: dict[str, Any] | None = None if row is None else _decode(row[0])
        return found

    def _delete(self, owner: str, id: str) -> bool:
        with self._writing() as database:
            done = database.execute("DELETE FROM responses WHERE owner = ? AND id = ?", (owner, id))
            return done.rowcount > 0

    def _sizes(self) -> tuple[int, int]:
        count, num_bytes = self._database.execute("SELECT count, bytes FROM totals").fetchone()
        return count, num_bytes

    def _writing(self) -> sqlite3.Connection:
        """A transaction that no other process is in; left as a context, it is whole or undone."""
        self._database.execute("BEGIN IMMEDIATE")
        return self._database


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
    for pragma in ("journal_mode = WAL", "synchronous = NORMAL", "foreign_keys = ON"):
        database.execute(f"PRAGMA {pragma}")
    database.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version = {_VERSION}; COMMIT;")
    return database
