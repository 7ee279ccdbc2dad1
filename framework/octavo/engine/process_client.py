"""An engine in a process of its own, reached over a ZeroMQ ipc socket.

The child is ``python -m octavo.engine --connect ADDRESS``. Its standard input is a pipe that this
process keeps open: its end tells the child that its parent is gone. Its output is relayed to this
process's standard error, and the last line of it explains a death.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import zmq

from octavo.config import EngineConfig
from octavo.engine.output_relay import OutputRelay, how_it_ended
from octavo.engine.socket_client import (
    LAST_WORDS_MILLISECONDS,
    LIVENESS_MILLISECONDS,
    SocketClient,
    ring,
)
from octavo.errors import EngineDeadError
from octavo.messages import EngineReady, ReplaceWorker, Shutdown, StartEngine
from octavo_registry.manifest import Manifest

log = logging.getLogger(__name__)

CLOSE_SECONDS: Final = 4.0
# Without -P the working directory would come before the modules that this process uses.
ENGINE_COMMAND: Final = (sys.executable, "-P", "-m", "octavo.engine")


class ProcessClient(SocketClient):
    """Starts an engine process and talks to it."""

    _killed_because: str | None = None

    def __init__(
        self,
        config: EngineConfig,
        manifest: Manifest,
        *,
        worker_addresses: Sequence[str] = (),
        command: Sequence[str] = ENGINE_COMMAND,
    ) -> None:
        """``worker_addresses`` are those of ``WorkerLink``s, which then make the requests."""
        with ExitStack() as cleanup:
            folder = tempfile.mkdtemp(prefix="octavo-")
            cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
            super().__init__(Path(folder) / "engine", cleanup)
            self._process = subprocess.Popen(
                [*command, "--connect", self._address],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                start_new_session=True,  # Ctrl-C in the terminal is for the parent only
            )
            cleanup.callback(_end_process, self._process, self._socket)
            assert self._process.stdout is not None  # a pipe was asked for
            # Where the output ends, so does the process: a poll that waits looks at once. (The
            # thread must not hold this client, which is closed when nobody does.)
            self._relay = OutputRelay(
                self._process.stdout, partial(_ring_at_end, self._process, self._wake)
            )
            try:
                self._start(config, manifest, tuple(worker_addresses))
            except BaseException:
                self._process.kill()  # a process that still loads hears no Shutdown
                raise
            # Also at garbage collection and at the interpreter's exit, if nobody calls close().
            self._close = weakref.finalize(self, cleanup.pop_all().close)
        log.debug("engine process %d is ready", self._process.pid)

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._end is None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def kill(self, cause: str) -> None:
        """End the process at once; safe from any thread."""
        self._killed_because = cause
        self._process.kill()

    def replace_worker(self, place: int, address: str) -> None:
        """End what a lost worker has asked for, and connect to another in its place."""
        self._send(ReplaceWorker(place, address))

    def close(self) -> None:
        """End the process within five seconds and remove the socket's folder."""
        self._end = self._end or "the engine was closed"
        self._close()

    def _start(
        self, config: EngineConfig, manifest: Manifest, worker_addresses: tuple[str, ...]
    ) -> None:
        self._wait_for_engine()
        level = logging.getLogger("octavo").getEffectiveLevel()
        self._send(
            StartEngine(
                config=config,
                manifest=manifest,
                log_level=level,
                worker_addresses=worker_addresses,
            )
        )
        ready = None
        while ready is None:
            ready = self._receive(LIVENESS_MILLISECONDS / 1000)
        if not isinstance(ready, EngineReady):
            raise EngineDeadError(f"the engine's first message was {type(ready).__name__}")
        self.ready = ready

    def _is_gone(self) -> bool:
        return self._process.poll() is not None

    def _died(self) -> EngineDeadError:
        self._end = self._end or self._killed_because or self._how_it_died()
        return EngineDeadError(self._end)

    def _how_it_died(self) -> str:
        try:
            end = how_it_ended(self._process.wait(LAST_WORDS_MILLISECONDS / 1000))
        except subprocess.TimeoutExpired:
            end = "closed its connection"
        line = self._relay.last_line(LAST_WORDS_MILLISECONDS / 1000)
        said = f"; its last line was: {line}" if line else ""
        return f"engine process {self._process.pid} {end}{said}"


def _ring_at_end(process: subprocess.Popen[bytes], wake: socket.socket) -> None:
    """Its output ends a moment before it can be seen to have ended."""
    process.wait()
    ring(wake)


def _end_process(process: subprocess.Popen[bytes], link: zmq.Socket[bytes]) -> None:
    """Ask, then insist: five seconds at most."""
    with suppress(zmq.ZMQError):
        link.send(msgspec.msgpack.encode(Shutdown()), zmq.NOBLOCK)
    try:
        process.wait(CLOSE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdin is not None:
        process.stdin.close()
