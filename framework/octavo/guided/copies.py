"""Work in a copy of this process, which may die of it: what was loaded needs no loading again."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NoReturn

_PIECE: Final = 2**16
_SIZE: Final = 4
"""Bytes that say how long an answer is."""
NICENESS: Final = 3
"""Of long work, which others need not wait for."""


class Copy:
    """A copy of this process that does one piece of work and ends; the process has one thread."""

    def __init__(self, work: Callable[[], bytes]) -> None:
        self._reading, writing = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            _do(work, writing)
        os.close(writing)
        self._status: int | None = None
        self.was_late = False
        """It was ended because time was up."""

    def answer(self, seconds: float) -> bytes:
        """What the work returned; empty when it has not returned anything by then, or died."""
        until = time.monotonic() + seconds
        data = bytearray()
        waiting = select.poll()
        waiting.register(self._reading, select.POLLIN)
        while waiting.poll(max(0.0, until - time.monotonic()) * 1000):
            piece = os.read(self._reading, _PIECE)
            data += piece
            size = int.from_bytes(data[:_SIZE])
            if len(data) == _SIZE + size and size:
                return bytes(data[_SIZE:])
            if not piece:
                return b""
        self.was_late = True
        return b""

    def end(self) -> int:
        """End it if it has not ended; return its exit status, a signal's number below zero."""
        if self._status is None:
            os.close(self._reading)
            if self.was_late:
                os.kill(self._pid, signal.SIGKILL)
            self._status = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        return self._status


def _do(work: Callable[[], bytes], writing: int) -> NoReturn:
    status = 1
    with suppress(BaseException):
        data = work()
        unsent = memoryview(len(data).to_bytes(_SIZE) + data)
        while unsent:
            unsent = unsent[os.write(writing, unsent) :]
        status = 0
    os._exit(status)
