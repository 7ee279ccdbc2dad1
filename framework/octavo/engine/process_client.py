"""An engine in a process of its own, reached over a ZeroMQ ipc socket.

The child is ``python -m octavo.engine --connect ADDRESS``. Its standard input is a pipe that this
process keeps open: its end tells the child that its parent is gone. Its output is relayed to this
process's standard error, and the last line of it explains a death.
"""

from __future__ import annotations

import logging
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import zmq

from octavo.config import EngineConfig
from octavo.engine.messages import (
    AbortSequences,
    AddRequests,
    CallUtility,
    ClientMessage,
    EngineFailed,
    EngineMessage,
    EngineReady,
    EngineRequest,
    Shutdown,
    StartEngine,
    StepOutputs,
    UtilityResult,
)
from octavo.engine.output_relay import OutputRelay
from octavo.errors import EngineDeadError, OctavoError, error_class
from octavo_registry.manifest import Manifest

log = logging.getLogger(__name__)

# Without -P the working directory would come before the modules that this process uses.
ENGINE_COMMAND: Final = (sys.executable, "-P", "-m", "octavo.engine")
# How long a death can stay unseen while nothing arrives.
LIVENESS_MILLISECONDS: Final = 200
# What a process sent before it died needs a moment to come through the socket's own thread.
LAST_WORDS_MILLISECONDS: Final = 200


class ProcessClient:
    """Starts an engine process and talks to it; see ``EngineClient`` for what the methods do."""

    ready: EngineReady

    def __init__(
        self,
        config: EngineConfig,
        manifest: Manifest,
        *,
        command: Sequence[str] = ENGINE_COMMAND,
    ) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(EngineMessage)
        self._waiting: deque[StepOutputs] = deque()
        self._calls = 0
        self._end: str | None = None
        with ExitStack() as cleanup:
            folder = tempfile.mkdtemp(prefix="octavo-")
            cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
            context = zmq.Context()
            cleanup.callback(context.term)
            self._socket = context.socket(zmq.DEALER)
            cleanup.callback(self._socket.close, linger=0)
            # Unlimited: a full queue on both sides would stop both; live requests bound it.
            self._socket.set_hwm(0)
            address = _bind(self._socket, Path(folder) / "engine")
            self._process = subprocess.Popen(
                [*command, "--connect", address],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                start_new_session=True,  # Ctrl-C in the terminal is for the parent only
            )
            cleanup.callback(_end_process, self._process, self._socket)
            assert self._process.stdout is not None  # a pipe was asked for
            self._relay = OutputRelay(self._process.stdout)
            self._wake_end, self._wake = socket.socketpair()
            for end in (self._wake_end, self._wake):
                cleanup.callback(end.close)
                end.setblocking(False)
            self._poller = zmq.Poller()
            self._poller.register(self._socket, zmq.POLLIN)
            self._poller.register(self._wake_end, zmq.POLLIN)
            try:
                self._start(config, manifest)
            except BaseException:
                self._process.terminate()  # a process that still loads hears no Shutdown
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

    def add(self, requests: list[EngineRequest]) -> None:
        """Send these in one message."""
        self._send(AddRequests(requests))

    def abort(self, sequences: list[int]) -> None:
        """Ask the engine to end these."""
        self._send(AbortSequences(sequences))

    def poll(self, timeout_seconds: float) -> StepOutputs | None:
        """Wait for the next outputs."""
        self._check_alive()
        if self._waiting:
            return self._waiting.popleft()
        message = self._receive(timeout_seconds)
        return message if isinstance(message, StepOutputs) else None

    def wake(self) -> None:
        """Make a waiting ``poll`` return; safe from any thread, also after ``close``."""
        try:
            self._wake.send(b"\0")
        except OSError:
            return  # full: a wake is already under way; closed: nobody waits

    def call(self, method: str) -> Any:
        """Run a utility; outputs that arrive meanwhile wait for the next ``poll``."""
        self._calls += 1
        self._send(CallUtility(self._calls, method))
        while True:
            message = self._receive(LIVENESS_MILLISECONDS / 1000)
            if isinstance(message, StepOutputs):
                self._waiting.append(message)
            elif isinstance(message, UtilityResult) and message.call_id == self._calls:
                if message.error is not None:
                    raise OctavoError(message.error)
                return message.value

    def close(self) -> None:
        """End the process within five seconds and remove the socket's folder."""
        self._end = self._end or "the engine was closed"
        self._close()

    def _start(self, config: EngineConfig, manifest: Manifest) -> None:
        while not self._socket.poll(LIVENESS_MILLISECONDS, zmq.POLLOUT):
            if self._process.poll() is not None:
                raise self._died()
        level = logging.getLogger("octavo").getEffectiveLevel()
        self._send(StartEngine(config=config, manifest=manifest, log_level=level))
        ready = None
        while ready is None:
            ready = self._receive(LIVENESS_MILLISECONDS / 1000)
        if not isinstance(ready, EngineReady):
            raise EngineDeadError(f"the engine's first message was {type(ready).__name__}")
        self.ready = ready

    def _check_alive(self) -> None:
        if self._end is not None:
            raise EngineDeadError(self._end)

    def _send(self, message: ClientMessage | StartEngine) -> None:
        self._check_alive()
        try:
            self._socket.send(self._encoder.encode(message), zmq.NOBLOCK)
        except zmq.Again:  # the queue is unlimited, so nobody is connected any more
            raise self._died() from None

    def _receive(self, timeout_seconds: float) -> EngineMessage | None:
        deadline = time.monotonic() + timeout_seconds
        while True:
            left = max(0, math.ceil((deadline - time.monotonic()) * 1000))
            try:
                events = dict(self._poller.poll(min(left, LIVENESS_MILLISECONDS)))
            except (zmq.ZMQError, OSError):
                self._check_alive()  # a signal's handler has closed this client meanwhile
                raise
            if self._socket in events:
                return self._take()
            if events:
                self._wake_end.recv(4096)
                return None
            if self._process.poll() is not None:
                if self._socket.poll(LAST_WORDS_MILLISECONDS):
                    return self._take()
                raise self._died()
            if left == 0:
                return None

    def _take(self) -> EngineMessage:
        message: EngineMessage = self._decoder.decode(self._socket.recv())
        if isinstance(message, EngineFailed):
            self._end = message.message
            raise error_class(message.error)(message.message)
        return message

    def _died(self) -> EngineDeadError:
        try:
            code = self._process.wait(LAST_WORDS_MILLISECONDS / 1000)
            end = f"was killed by {_signal_name(-code)}" if code < 0 else f"exited with code {code}"
        except subprocess.TimeoutExpired:
            end = "closed its connection"
        line = self._relay.last_line(LAST_WORDS_MILLISECONDS / 1000)
        said = f"; its last line was: {line}" if line else ""
        self._end = f"engine process {self._process.pid} {end}{said}"
        return EngineDeadError(self._end)


def _bind(socket: zmq.Socket[bytes], path: Path) -> str:
    address = f"ipc://{path}"
    try:
        socket.bind(address)
    except zmq.ZMQError as error:
        raise EngineDeadError(
            f"cannot make the engine's socket {path}: {error}; set TMPDIR to a short, writable path"
        ) from error
    return address


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _end_process(process: subprocess.Popen[bytes], socket: zmq.Socket[bytes]) -> None:
    """Ask, then insist: five seconds at most."""
    with suppress(zmq.ZMQError):
        socket.send(msgspec.msgpack.encode(Shutdown()), zmq.NOBLOCK)
    for wait_seconds, insist in ((2.5, process.terminate), (1.5, process.kill)):
        try:
            process.wait(wait_seconds)
            break
        except subprocess.TimeoutExpired:
            insist()
    process.wait()
    if process.stdin is not None:
        process.stdin.close()
