"""The HTTP processes of a server, as the process that has started them sees them."""

from __future__ import annotations

import itertools
import logging
import math
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from octavo.engine.output_relay import how_it_ended
from octavo.errors import EngineDeadError, OctavoError
from octavo.server.processes.lifecycle import LIVENESS_SECONDS
from octavo.server.processes.messages import (
    READY_LINE,
    Cut,
    Drain,
    EngineEnded,
    ToWorker,
    WorkerStart,
    encode,
)
from octavo.server.processes.shared_engine import SharedEngine

log = logging.getLogger(__name__)

WORKER_COMMAND: Final = (sys.executable, "-P", "-m", "octavo.server.processes.worker")
CALM_SECONDS: Final = 60.0
"""Who has lived so long is replaced at once; who dies sooner, after a pause."""
FIRST_PAUSE_SECONDS: Final = 1.0
MOST_PAUSE_SECONDS: Final = 60.0
MOST_START_PAUSE_SECONDS: Final = 4.0
"""A server that still starts gives up rather than pause for longer."""


class Workers:
    """One that is lost is replaced, as often as that happens, after pauses that double.

    The engine and the others go on meanwhile: to end the server would cost all requests, and
    loading the model again.
    """

    def __init__(
        self,
        engine: SharedEngine,
        start: Callable[..., WorkerStart],
        listeners: Sequence[socket.socket],
        bind: Callable[[], socket.socket],
    ) -> None:
        """``start`` takes what workers do not share; ``bind`` is for those that come later."""
        self._engine = engine
        self._make_start = start
        self._bind = bind
        self._numbers = itertools.count()
        self._is_starting, self._is_ending = True, False
        self._workers: list[_Worker] = []
        for place, listener in enumerate(listeners):
            self._workers.append(self._start(place, listener, 0.0))

    @property
    def is_running(self) -> bool:
        """Whether one still runs."""
        return any(worker.is_running for worker in self._workers)

    @property
    def code(self) -> int:
        """0 if all have ended well."""
        return int(any(worker.code for worker in self._workers))

    def wait_until_ready(self) -> None:
        """Wait for all to answer requests; raises where one cannot."""
        while not all(worker.is_ready() for worker in self._workers):
            if self._engine.end is not None:  # a worker would wait for it for ever
                raise EngineDeadError(self._engine.end)
            self.check()
            time.sleep(LIVENESS_SECONDS)
        self._is_starting = False

    def check(self) -> None:
        """Let the engine drop what lost workers have asked for; replace them when it is time."""
        for place, worker in enumerate(self._workers):
            if worker.is_running or (self._is_ending and worker.code == 0):
                continue
            if not worker.is_lost:
                self._lose(place, worker)
            if time.monotonic() >= worker.next_seconds and not self._is_ending:
                self._replace(place)

    def engine_ended(self, cause: str, *, is_last: bool) -> None:
        """Fail what is in flight and refuse what comes."""
        self._tell(EngineEnded(cause, is_last))

    def engine_started(self) -> None:
        """Let requests in again; who still waits for the old engine is started anew."""
        for place, worker in enumerate(self._workers):
            if worker.is_ready():
                worker.tell(self._engine.told(place))
            else:
                self._replace(place)

    def drain(self) -> None:
        """Let them end when all that is in flight has been answered."""
        self._is_ending = True
        self._tell(Drain())

    def cut(self) -> None:
        """Let them end at once."""
        self._tell(Cut())

    def close(self) -> None:
        """End what is left."""
        for worker in self._workers:
            worker.end()

    def _lose(self, place: int, worker: _Worker) -> None:
        worker.lose()
        how = f"HTTP worker {place} {how_it_ended(worker.code)}"
        if self._is_starting and (worker.code > 0 or worker.pause > MOST_START_PAUSE_SECONDS):
            raise OctavoError(f"{how} before the server had started; its log says why")
        pause = f" in {worker.pause:g} s" if worker.pause else ""
        log.error("%s%s", how, "" if self._is_ending else f"; another is started{pause}")
        self._engine.replace_worker(place)

    def _replace(self, place: int) -> None:
        self._workers[place].end()
        with self._bind() as listener:
            self._workers[place] = self._start(place, listener, self._workers[place].pause)

    def _start(self, place: int, listener: socket.socket, pause: float) -> _Worker:
        start = self._make_start(
            place=place,
            number=next(self._numbers),
            listener=listener.fileno(),
            engine=self._engine.told(place),
        )
        return _Worker(start, pause)

    def _tell(self, message: ToWorker) -> None:
        for worker in self._workers:
            worker.tell(message)


class _Worker:
    """An HTTP process; it ends by itself when its standard input does."""

    def __init__(self, start: WorkerStart, pause: float) -> None:
        self.pause = pause
        """Seconds that its place was empty before it; once it is lost, that it will be after it."""
        self.next_seconds = math.inf
        """When another takes its place; set once it is lost."""
        self._began = time.monotonic()
        self._is_ready = False
        self._process = subprocess.Popen(
            WORKER_COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            pass_fds=[start.listener],
            start_new_session=True,  # Ctrl-C in the terminal is for the parent only
        )
        self.tell(start)

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def is_lost(self) -> bool:
        """Whether its end has been seen."""
        return self.next_seconds < math.inf

    @property
    def code(self) -> int:
        return self._process.wait()

    def lose(self) -> None:
        """Note that it has ended; one that did so soon must not be replaced over and over."""
        now = time.monotonic()
        if now - self._began > CALM_SECONDS:
            self.pause = 0.0
        else:
            self.pause = min(max(FIRST_PAUSE_SECONDS, 2 * self.pause), MOST_PAUSE_SECONDS)
        self.next_seconds = now + self.pause

    def is_ready(self) -> bool:
        """Whether it has come to answer requests, though it may have ended since."""
        pipe = self._process.stdout
        assert pipe is not None  # a pipe was asked for
        if not self._is_ready and select.select([pipe], [], [], 0)[0]:
            self._is_ready = pipe.readline() == READY_LINE
        return self._is_ready

    def tell(self, message: ToWorker) -> None:
        assert self._process.stdin is not None  # a pipe was asked for
        with suppress(OSError):  # ``check`` sees that it has ended
            self._process.stdin.write(encode(message))
            self._process.stdin.flush()

    def end(self) -> None:
        """At once, if it has not ended."""
        with suppress(OSError), self._process:
            self._process.kill()
