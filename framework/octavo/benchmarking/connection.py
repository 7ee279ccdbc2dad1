"""Answers in server-sent events, parsed from the socket: what a benchmark's client does most.

An HTTP library takes 20 to 60 microseconds for each event, so that 256 streams would measure it
rather than the server; this takes about 5 (``python -m benchmarks.stream_client``).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from time import perf_counter
from typing import cast

from octavo.errors import OctavoError

MAX_HEAD_BYTES = 65_536
MAX_ERROR_BYTES = 65_536
Take = Callable[[bytes, float], None]


class AnswerError(OctavoError):
    """An answer that is a refusal, is cut, or is no HTTP."""


class Unsent(AnswerError):
    """A kept connection that the server had closed before it saw the request."""


class StreamConnection(asyncio.Protocol):
    """One request at a time; open for the next while ``reusable``."""

    def __init__(self) -> None:
        self.reusable = False
        self._transport: asyncio.WriteTransport | None = None
        self._answer: asyncio.Future[None] | None = None
        self._closed = False
        self._reset(_ignore)

    def _reset(self, take: Take) -> None:
        self._take = take
        self._pending = b""
        self._partial = b""
        """The beginning of an event whose end has not come."""
        self._in_head = True
        self._status = 0
        self._remaining: int | None = None
        """Bytes of a body whose length is known."""
        self._chunked = False
        self._refusal = b""

    async def request(self, data: bytes, take: Take) -> None:
        """Send a request; ``take`` gets each event's data and the time at which it came.

        Returns when the answer is whole; any other than status 200 is an AnswerError.
        """
        if self._closed or self._transport is None:
            raise Unsent("the connection is closed")
        self._reset(take)
        self.reusable = False
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(data)
        try:
            await self._answer
        finally:
            self._answer = None
        if self._status != 200:
            raise AnswerError(_refusal(self._status, self._refusal))

    def close(self) -> None:
        """Close the connection; a request under way fails."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; called by the event loop."""
        self._transport = cast("asyncio.WriteTransport", transport)  # uvloop's derive from nothing

    def connection_lost(self, error: Exception | None) -> None:
        """Fail what is under way, unless the end of the connection is the end of its body."""
        self._closed = True
        self.reusable = False
        if self._answer is None or self._answer.done():
            return
        if self._in_head and not self._pending:
            self._fail(Unsent(f"the server closed the connection: {error or 'no answer'}"))
        elif not self._in_head and not self._chunked and self._remaining is None and error is None:
            self._finish()
        else:
            self._fail(AnswerError(f"the answer broke off: {error or 'the connection was closed'}"))

    def data_received(self, data: bytes) -> None:
        """Take what has come; called by the event loop."""
        now = perf_counter()
        if self._answer is None or self._answer.done():
            self.reusable = False  # bytes that nobody asked for
            return
        if self._pending:
            data = self._pending + data
            self._pending = b""
        try:
            if self._in_head:
                data = self._read_head(data)
                if self._in_head:
                    self._pending = data
                    return
            if self._chunked:
                self._pending = self._read_chunks(data, now)
            else:
                self._read_plain(data, now)
        except (AnswerError, ValueError) as error:
            self._fail(error)
            self.close()

    def _read_head(self, data: bytes) -> bytes:
        """Read the head if it is whole; return what follows it, else all."""
        end = data.find(b"\r\n\r\n")
        if end < 0:
            if len(data) > MAX_HEAD_BYTES:
                raise AnswerError("the answer's head does not end")
            return data
        first, *lines = data[:end].split(b"\r\n")
        version, _, rest = first.partition(b" ")
        if not version.startswith(b"HTTP/1."):
            raise AnswerError(f"what came is no HTTP: {data[:40]!r}")
        self._status = int(rest[:3])
        fields = {
            name.strip().lower(): value.strip().lower()
            for name, _, value in (line.partition(b":") for line in lines)
        }
        self._chunked = b"chunked" in fields.get(b"transfer-encoding", b"")
        if not self._chunked and b"content-length" in fields:
            self._remaining = int(fields[b"content-length"])
        self.reusable = fields.get(b"connection") != b"close" and version != b"HTTP/1.0"
        self._in_head = False
        return data[end + 4 :]

    def _read_chunks(self, data: bytes, now: float) -> bytes:
        """Take whole chunks; return the beginning of the next."""
        position = 0
        while True:
            line_end = data.find(b"\r\n", position)
            if line_end < 0:
                return data[position:]
            size = int(data[position:line_end].partition(b";")[0], 16)
            begin = line_end + 2
            end = begin + size
            if len(data) < end + 2:
                return data[position:]
            if size == 0:
                self._finish()
                return b""
            self._take_text(data[begin:end], now)
            position = end + 2

    def _read_plain(self, data: bytes, now: float) -> None:
        if self._remaining is not None:
            data = data[: self._remaining]
            self._remaining -= len(data)
        self._take_text(data, now)
        if self._remaining == 0:
            self._finish()

    def _take_text(self, text: bytes, now: float) -> None:
        if self._status != 200:
            self._refusal = (self._refusal + text)[:MAX_ERROR_BYTES]
            return
        if self._partial:
            text = self._partial + text
        if b"\r" in text:
            text = text.replace(b"\r\n", b"\n")
        *events, self._partial = text.split(b"\n\n")
        for event in events:
            for line in event.split(b"\n"):
                if line.startswith(b"data:"):
                    self._take(line[5:], now)

    def _finish(self) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(None)

    def _fail(self, error: Exception) -> None:
        self.reusable = False
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(
                error if isinstance(error, AnswerError) else AnswerError(f"the answer: {error}")
            )


def _ignore(data: bytes, now: float) -> None:
    """Between requests nobody takes events."""


def _refusal(status: int, body: bytes) -> str:
    try:
        message = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = body[:200].decode(errors="replace")
    return f"{status}: {message}"
