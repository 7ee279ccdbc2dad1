"""A child process that answers one message at a time, and is ended when an answer is late."""

from __future__ import annotations

import math
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from struct import Struct
from typing import IO, Final

_LENGTH: Final = Struct(">I")
HEADROOM_SECONDS: Final = 2
"""Left to the parent, which says what has happened, before the kernel ends an orphan."""

BY_LIMIT: Final = (-signal.SIGPROF, -signal.SIGXCPU)
"""Exit statuses of what has used up its time of a core."""


class ChildProcess:
    """The parent's side. One thread at a time may ask; any may end it."""

    def __init__(self, module: str) -> None:
        self.was_late = False
        """It was ended because time was up."""
        self._process = subprocess.Popen(
            (sys.executable, "-P", "-m", module),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            start_new_session=True,
        )
        self._is_asked = threading.Lock()  # pipes in use are not closed
        os.set_blocking(_opened(self._process.stdin).fileno(), False)

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    @property
    def exit_status(self) -> int | None:
        """A signal's number below zero; None while it has not ended."""
        return self._process.poll()

    @property
    def by_its_limit(self) -> bool:
        """Whether it has ended because it had used up its time of a core."""
        return self._process.poll() in BY_LIMIT

    def ask(self, data: bytes, seconds: float) -> bytes | None:
        """Its answer; None when it has ended, or was ended because time was up."""
        until = time.monotonic() + seconds
        with self._is_asked:
            try:
                self._send(_LENGTH.pack(len(data)) + data, until)
                (length,) = _LENGTH.unpack(self._receive(_LENGTH.size, until))
                return self._receive(length, until)
            except TimeoutError:
                self.was_late = True
                self._kill()
            except (OSError, EOFError, ValueError):  # ValueError: another thread has ended it
                pass
        return None

    def kill(self) -> None:
        """End it and its own; calling it again does nothing."""
        self._kill()
        self._process.wait()
        with self._is_asked:
            for pipe in (self._process.stdin, self._process.stdout):
                with suppress(OSError):
                    _opened(pipe).close()

    def _kill(self) -> None:
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # its session is its own

    def _send(self, data: bytes, until: float) -> None:
        pipe, unsent = _opened(self._process.stdin).fileno(), memoryview(data)
        while unsent:
            _wait(pipe, select.POLLOUT, until)
            unsent = unsent[os.write(pipe, unsent) :]

    def _receive(self, size: int, until: float) -> bytes:
        pipe, data = _opened(self._process.stdout).fileno(), bytearray()
        while len(data) < size:
            _wait(pipe, select.POLLIN, until)
            part = os.read(pipe, size - len(data))
            if not part:
                raise EOFError
            data += part
        return bytes(data)


def _wait(pipe: int, event: int, until: float) -> None:
    """``poll``, since ``select`` knows no descriptor above 1023."""
    waiting = select.poll()
    waiting.register(pipe, event)
    if not waiting.poll(max(0.0, until - time.monotonic()) * 1000):
        raise TimeoutError


def open_pipes() -> tuple[IO[bytes], IO[bytes]]:
    """The child's side: where messages come from and answers go, which nothing else writes to."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the parent says when this ends
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a plugin prints is no answer
    return sys.stdin.buffer, answers


class Limits:
    """What the next piece of work may take; the kernel ends this process when it takes more."""

    def __init__(self, *, total_mib: int | None = None) -> None:
        self._most_bytes = None if total_mib is None else data_bytes() + total_mib * 2**20

    def begin(self, *, cpu_seconds: float, seconds: float, mib: int) -> None:
        """Count from now on. ``seconds`` by the clock are the parent's to hold, while it lives."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        most = int(used.ru_utime + used.ru_stime) + 1 + math.ceil(cpu_seconds)
        _limit(resource.RLIMIT_CPU, most)
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)  # to the millisecond
        data = data_bytes() + mib * 2**20
        if self._most_bytes is not None:
            data = min(data, self._most_bytes)
        _limit(resource.RLIMIT_DATA, data)
        signal.alarm(int(seconds) + HEADROOM_SECONDS)

    def end(self) -> None:
        """Lift all of them until the next piece begins."""
        signal.alarm(0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        for limit in (resource.RLIMIT_CPU, resource.RLIMIT_DATA):
            _limit(limit, resource.RLIM_INFINITY)


def _limit(kind: int, value: int) -> None:
    """Not above the hard limit, which this process has inherited and may not be able to raise."""
    hard = resource.getrlimit(kind)[1]
    if hard != resource.RLIM_INFINITY:
        value = hard if value == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, hard))


def data_bytes() -> int:
    """Bytes of this process, as the kernel counts them towards its limit."""
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmData:"):
                return int(line.split()[1]) * 1024
    return 0


def write_frame(pipe: IO[bytes], data: bytes) -> None:
    """Send one message."""
    pipe.write(_LENGTH.pack(len(data)) + data)
    pipe.flush()


def read_frame(pipe: IO[bytes]) -> bytes:
    """The next message; empty when the other side has ended, also in the middle of one."""
    head = pipe.read(_LENGTH.size)
    length = _LENGTH.unpack(head)[0] if len(head) == _LENGTH.size else 0
    data = pipe.read(length)
    return data if len(data) == length else b""


def _opened(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise ValueError("no pipe was asked for")
    return pipe
