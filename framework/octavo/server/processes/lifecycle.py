"""A server's life: how signals reach it, what becomes of its engine, and how it ends."""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Final, NoReturn, Protocol, Self

from octavo.config.server import ServerConfig
from octavo.errors import EngineDeadError, OctavoError

log = logging.getLogger(__name__)

LIVENESS_SECONDS: Final = 0.1
"""How long a signal or an engine's death can stay unseen."""
FAREWELL_SECONDS: Final = 2.0
"""For telling clients that the engine has ended, or for ending at once."""


class WatchedEngine(Protocol):
    """What is watched: an ``AsyncLLM``, or the engine of several workers."""

    @property
    def end(self) -> str | None:
        """Why it has ended; None while it has not."""
        ...

    @property
    def seconds_without_progress(self) -> float:
        """How long it has owed a sign of life."""
        ...

    def kill(self, cause: str) -> None:
        """End it at once, for this reason."""
        ...

    def restart(self) -> None:
        """Start another in its place; blocks until that is ready."""
        ...


class HttpSide(Protocol):
    """What answers requests: a thread of this process, or processes."""

    @property
    def is_running(self) -> bool:
        """Whether anything still has to end."""
        ...

    @property
    def code(self) -> int:
        """The exit code that its end asks for."""
        ...

    def check(self) -> None:
        """See to what has ended by itself, or raise."""
        ...

    def engine_ended(self, cause: str, *, is_last: bool) -> None:
        """Fail what is in flight and refuse what comes, until there is another engine."""
        ...

    def engine_started(self) -> None:
        """Let requests in again."""
        ...

    def drain(self) -> None:
        """Refuse what comes, and end when all that is in flight has been answered."""
        ...

    def cut(self) -> None:
        """End at once."""
        ...


class Interrupted(BaseException):
    """A signal came where nothing is lost by giving up."""


class Signals:
    """SIGINT and SIGTERM: they are noted, save where they may interrupt."""

    def __init__(self) -> None:
        self._received: SimpleQueue[int] = SimpleQueue()
        self._may_interrupt = False

    def __enter__(self) -> Self:
        numbers = (signal.SIGINT, signal.SIGTERM)
        self._before = {number: signal.signal(number, self._receive) for number in numbers}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def wait(self, seconds: float) -> bool:
        """Wait for one that was not seen before; whether it has come."""
        try:
            self._received.get(timeout=seconds)
        except Empty:
            return False
        return True

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """Inside, the first signal raises Interrupted; what cleans up afterwards is left alone."""
        self._may_interrupt = True
        try:
            if not self._received.empty():  # it came just before
                raise Interrupted
            yield
        finally:
            self._may_interrupt = False

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self._received.put(number)
        if self._may_interrupt:
            self._may_interrupt = False
            raise Interrupted


def announce(url: str, model_name: str) -> None:
    """Tell the user, whatever the log's level, that requests are answered."""
    sys.stderr.write(f"{model_name} is served at {url} (Ctrl-C ends it)\n")
    sys.stderr.flush()


def supervise(engine: WatchedEngine, http: HttpSide, config: ServerConfig, signals: Signals) -> int:
    """Watch until a signal, and return 0 if all that was in flight has been answered.

    Raises EngineDeadError with the cause when the engine has ended and is not to be restarted.
    """
    restarts = 1 if config.serve.on_engine_death == "restart" else 0
    most_seconds = 2 * config.limits.hang_seconds
    while not signals.wait(LIVENESS_SECONDS):
        if engine.end is None:
            http.check()
            if engine.seconds_without_progress > most_seconds:
                engine.kill(
                    f"the engine has made no step for {most_seconds:g} s (twice --hang-seconds) "
                    "and was killed"
                )
            continue
        if restarts == 0:
            break
        restarts -= 1
        log.error("another engine is started, since %s", engine.end)
        http.engine_ended(engine.end, is_last=False)
        try:
            with signals.interrupting():
                engine.restart()
        except Interrupted:
            return wind_down(engine, http, config, signals)
        except (OctavoError, OSError) as error:
            wind_down(engine, http, config, signals)
            raise EngineDeadError(f"no other engine could be started: {error}") from error
        http.engine_started()
        log.info("another engine has started")
    code = wind_down(engine, http, config, signals)
    if engine.end is not None:
        raise EngineDeadError(engine.end)
    return code


def wind_down(engine: WatchedEngine, http: HttpSide, config: ServerConfig, signals: Signals) -> int:
    """Wait for what is in flight until the time is up, the engine ends, or a signal comes."""
    seconds, is_dead = config.limits.drain_timeout_seconds, False
    if engine.end is not None:
        seconds, is_dead = FAREWELL_SECONDS, True
        http.engine_ended(engine.end, is_last=True)
    http.drain()
    deadline = time.monotonic() + seconds
    while http.is_running and time.monotonic() < deadline and not signals.wait(LIVENESS_SECONDS):
        http.check()
        if not is_dead and engine.end is not None:
            is_dead = True
            http.engine_ended(engine.end, is_last=True)
            deadline = min(deadline, time.monotonic() + FAREWELL_SECONDS)
    if not http.is_running:
        return http.code
    http.cut()
    deadline = time.monotonic() + FAREWELL_SECONDS
    while http.is_running and time.monotonic() < deadline:
        time.sleep(LIVENESS_SECONDS)
    return 1 if http.is_running else http.code


def leave(code: int) -> NoReturn:
    """End this process as the interpreter would, but for threads that still work.

    One that tokenizes a long text would be waited for, though nobody waits for its result.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
