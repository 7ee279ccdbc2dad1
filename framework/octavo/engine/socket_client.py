"""An engine behind a ZeroMQ ipc socket, whoever has started its process."""

from __future__ import annotations

import math
import socket
import time
from abc import ABC, abstractmethod
from collections import deque
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import zmq

from octavo.errors import EngineDeadError, RequestFailedError, error_class
from octavo.messages import (
    AbortSequences,
    AddAdapter,
    AddRequests,
    CallUtility,
    ClientMessage,
    EngineFailed,
    EngineMessage,
    EngineReady,
    EngineRequest,
    PackedAdapter,
    RemoveAdapter,
    StartEngine,
    StepOutputs,
    UtilityResult,
)
from octavo.pooled_calls import PooledCall

# How long a death can stay unseen while nothing arrives.
LIVENESS_MILLISECONDS: Final = 200
# What a process sent before it died needs a moment to come through the socket's own thread.
LAST_WORDS_MILLISECONDS: Final = 200


class SocketClient(ABC):
    """Messages to an engine and back; see ``EngineClient`` for what the methods do."""

    ready: EngineReady

    def __init__(self, path: Path, cleanup: ExitStack) -> None:
        """Wait for an engine at the path; ``cleanup`` gets what must be closed."""
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(EngineMessage)
        self._waiting: deque[StepOutputs] = deque()
        self._calls = self._answered = 0
        self._end: str | None = None
        context = zmq.Context()
        cleanup.callback(context.term)
        self._socket = context.socket(zmq.DEALER)
        cleanup.callback(self._socket.close, linger=0)
        # Unlimited: a full queue on both sides would stop both; live requests bound it.
        self._socket.set_hwm(0)
        self._address = _bind(self._socket, path)
        self._wake_end, self._wake = socket.socketpair()
        for end in (self._wake_end, self._wake):
            cleanup.callback(end.close)
            end.setblocking(False)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._wake_end, zmq.POLLIN)

    @abstractmethod
    def _is_gone(self) -> bool:
        """Whether the engine's process has ended."""

    @abstractmethod
    def _died(self) -> EngineDeadError:
        """Return why, and remember it as the end."""

    def add(self, requests: list[EngineRequest]) -> None:
        """Send these in one message."""
        self._send(AddRequests(requests))

    def add_call(self, call: PooledCall) -> None:
        """Send it."""
        self._send(call)

    def abort(self, ids: list[int]) -> None:
        """Ask the engine to end these."""
        self._send(AbortSequences(ids))

    def add_adapter(self, adapter: PackedAdapter) -> None:
        """Send it; requests that come behind it may name it."""
        self._send(AddAdapter(adapter.head), adapter.data)

    def remove_adapter(self, content_hash: str) -> None:
        """Ask the engine to take no more requests that name it."""
        self._send(RemoveAdapter(content_hash))

    def poll(self, timeout_seconds: float) -> StepOutputs | None:
        """Wait for the next outputs."""
        self._check_alive()
        if self._waiting:
            return self._waiting.popleft()
        message = self._receive(timeout_seconds)
        return message if isinstance(message, StepOutputs) else None

    def wake(self) -> None:
        """Make a waiting ``poll`` return; safe from any thread, also after ``close``."""
        ring(self._wake)

    def call(self, method: str) -> Any:
        """Run a utility; outputs that arrive meanwhile wait for the next ``poll``."""
        self._calls += 1
        self._send(CallUtility(self._calls, method))
        while True:
            message = self._receive(LIVENESS_MILLISECONDS / 1000)
            if isinstance(message, StepOutputs):
                self._waiting.append(message)
            elif isinstance(message, UtilityResult) and self.has_answered:
                if message.error is not None:
                    raise RequestFailedError(message.error)
                return message.value

    def ping(self) -> None:
        """Ask for a sign of life, which ``poll`` takes in."""
        self._calls += 1
        self._send(CallUtility(self._calls, "stats"))

    @property
    def has_answered(self) -> bool:
        """Whether the last ping, or call, has its answer."""
        return self._answered == self._calls

    def _wait_for_engine(self) -> None:
        while not self._socket.poll(LIVENESS_MILLISECONDS, zmq.POLLOUT):
            if self._is_gone():
                raise self._died()

    def _check_alive(self) -> None:
        if self._end is not None:
            raise EngineDeadError(self._end)

    def _send(self, message: ClientMessage | StartEngine, data: memoryview | None = None) -> None:
        self._check_alive()
        try:
            if data is None:
                self._socket.send(self._encoder.encode(message), zmq.NOBLOCK)
            else:
                frames = self._encoder.encode(message), data
                self._socket.send_multipart(frames, zmq.NOBLOCK, copy=False)
        except zmq.Again:  # the queue is unlimited, so nobody is connected any more
            raise self._died() from None
        except zmq.ZMQError:
            self._check_alive()  # a signal's handler has closed this client meanwhile
            raise

    def _receive(self, timeout_seconds: float) -> EngineMessage | None:
        try:
            return self._wait_for_message(timeout_seconds)
        except (zmq.ZMQError, OSError):
            self._check_alive()  # a signal's handler has closed this client meanwhile
            raise

    def _wait_for_message(self, timeout_seconds: float) -> EngineMessage | None:
        deadline = time.monotonic() + timeout_seconds
        while True:
            left = max(0, math.ceil((deadline - time.monotonic()) * 1000))
            events = dict(self._poller.poll(min(left, LIVENESS_MILLISECONDS)))
            self._check_alive()
            if self._socket in events:
                return self._take()
            if events:
                self._wake_end.recv(4096)
            if self._is_gone():
                return self._last_words()
            if events or left == 0:
                return None

    def _last_words(self) -> EngineMessage:
        """Take what was sent before the end: all has come when the connection is gone."""
        deadline = time.monotonic() + LAST_WORDS_MILLISECONDS / 1000
        while not self._socket.poll(0):
            is_connected = self._socket.poll(0, zmq.POLLOUT)
            if time.monotonic() > deadline or not (is_connected or self._socket.poll(0)):
                raise self._died()
            time.sleep(0.002)
        return self._take()

    def _take(self) -> EngineMessage:
        message: EngineMessage = self._decoder.decode(self._socket.recv())
        if isinstance(message, EngineFailed):
            self._end = message.message
            raise error_class(message.error)(message.message)
        if isinstance(message, UtilityResult):
            self._answered = message.call_id
        return message


def ring(wake: socket.socket) -> None:
    """Make the poll return that waits at the other end."""
    with suppress(OSError):  # full: a wake is already under way; closed: nobody waits
        wake.send(b"\0")


def _bind(socket: zmq.Socket[bytes], path: Path) -> str:
    address = f"ipc://{path}"
    try:
        socket.bind(address)
    except zmq.ZMQError as error:
        raise EngineDeadError(
            f"cannot make the engine's socket {path}: {error}; set TMPDIR to a short, writable path"
        ) from error
    return address
