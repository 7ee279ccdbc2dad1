"""What the processes of a server with HTTP workers say to each other."""

from __future__ import annotations

import os
from typing import Final

import msgspec

from octavo.config import EngineConfig
from octavo.messages import EngineReady
from octavo.server.processes.http_thread import Service
from octavo_registry.manifest import Manifest

READY_LINE: Final = b"ready\n"
"""What a worker writes to its standard output when it answers requests."""
_LENGTH_BYTES: Final = 4


class EngineStarted(msgspec.Struct, frozen=True, tag=True):
    """To a worker: there is an engine, which connects to this address."""

    address: str
    ready: EngineReady


class EngineEnded(msgspec.Struct, frozen=True, tag=True):
    """To a worker: the engine has ended."""

    cause: str
    is_last: bool


class WorkerStart(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """First message to a worker, on its standard input."""

    config: EngineConfig
    manifest: Manifest
    service: Service
    """With this worker's part of the limits."""
    log_level: int
    num_workers: int
    place: int
    """Tells its sequences from those of the others."""
    number: int
    """Workers that were started before it."""
    listener: int
    """The listening socket's descriptor."""
    engine: EngineStarted


class Drain(msgspec.Struct, frozen=True, tag=True):
    """To a worker: end when all that is in flight has been answered."""


class Cut(msgspec.Struct, frozen=True, tag=True):
    """To a worker: end at once."""


ToWorker = WorkerStart | EngineEnded | EngineStarted | Drain | Cut


def encode(message: ToWorker) -> bytes:
    """A message behind its length, as ``receive`` takes it."""
    data = msgspec.msgpack.encode(message)
    return len(data).to_bytes(_LENGTH_BYTES, "big") + data


def receive(pipe: int) -> ToWorker | None:
    """Wait for the next message; None when there is no parent any more."""
    size = _read(pipe, _LENGTH_BYTES)
    if len(size) < _LENGTH_BYTES:
        return None
    data = _read(pipe, int.from_bytes(size, "big"))
    message: ToWorker = msgspec.msgpack.decode(data, type=ToWorker)
    return message


def _read(pipe: int, num_bytes: int) -> bytes:
    """Not from sys.stdin: its lock would be held at the interpreter's exit."""
    data = b""
    while len(data) < num_bytes and (more := os.read(pipe, num_bytes - len(data))):
        data += more
    return data
