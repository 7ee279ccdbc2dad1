"""How much of a connection is read: no more while requests wait for the one before them."""

from __future__ import annotations

import asyncio
import re
import select
from collections.abc import Callable
from typing import Final

from uvicorn.protocols.http.flow_control import FlowControl

LOOK_SECONDS: Final = 0.5
"""How long a client may have left unseen while nothing of it is read."""
CHUNKED_PIECE_BYTES: Final = 1024
"""Parsed at once of a body in chunks, whose end only the parser finds."""
READ_BYTES: Final = 256 * 1024
"""Read at once of a connection."""
LEAST_READ_BYTES: Final = 4 * 1024
"""Read at once where many bytes wait already: all connections are read, each a little."""
MAX_WAITING_BYTES: Final = 64 * 2**20
"""Bytes of all connections of a process that are read and not parsed."""
_BLANK_LINE: Final = re.compile(rb"\n\r?\n")
_LEFT: Final = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR
"""POLLRDHUP, which only Linux has, tells of an end behind what was not read."""


def end_of_headers(data: memoryview) -> int:
    """Where the first blank line ends, and with it what may be one whole request."""
    found = _BLANK_LINE.search(data)
    return len(data) if found is None else found.end()


class WaitingBytes:
    """What has come of all connections and waits, as requests before it are not answered."""

    def __init__(self) -> None:
        self.num_bytes = 0
        # One for all: what is read into it is copied before anything else is read.
        self._buffer = memoryview(bytearray(READ_BYTES))

    def buffer(self) -> memoryview:
        """Where a connection's next bytes go: the less, the less room there is for waiting ones."""
        room = (MAX_WAITING_BYTES - self.num_bytes) // 64
        return self._buffer[: max(LEAST_READ_BYTES, min(room, READ_BYTES))]

    def read(self, num_bytes: int) -> bytes:
        """What has been read into it."""
        return bytes(self._buffer[:num_bytes])


class Reading(FlowControl):
    """Pauses and resumes; sees a client leave while nothing is read."""

    def __init__(
        self, transport: asyncio.Transport, may_read: Callable[[], bool], left: Callable[[], None]
    ) -> None:
        super().__init__(transport)
        self._may_read = may_read
        self._left = left
        self._looking: asyncio.TimerHandle | None = None

    def pause_reading(self) -> None:
        """Read nothing more for now."""
        super().pause_reading()
        if self._looking is None:
            self._look_later()

    def resume_reading(self) -> None:
        """Read on; nothing happens while it may not."""
        if self.read_paused and self._may_read():
            self.stop_looking()
            super().resume_reading()

    def stop_looking(self) -> None:
        """The connection has ended, or its end would be read."""
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None

    def _look_later(self) -> None:
        self._looking = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        if _has_left(self._transport.get_extra_info("socket").fileno()):
            self._looking = None
            self._left()
        else:
            self._look_later()


def _has_left(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, _LEFT)
    return bool(poll.poll(0))
