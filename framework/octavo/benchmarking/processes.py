"""One load over several processes, since one event loop may not keep up with a fast server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from threading import Lock
from time import perf_counter
from typing import IO

import msgspec

from octavo.benchmarking.load import TimedRequest
from octavo.benchmarking.records import Record
from octavo.client import Address
from octavo.errors import OctavoError
from octavo.frontend.progress import ProgressBar

STREAMS_PER_PROCESS = 128
"""A process parses about 100,000 events a second, 400 for each of 256 streams; half is margin."""
START_SECONDS = 0.2
"""Between the word to start and the start, so that all processes have heard it."""


class Share(msgspec.Struct):
    """What one process is to do."""

    address: Address
    max_concurrency: int | None
    requests: list[TimedRequest]


class Outcome(msgspec.Struct, tag=True):
    """What one process has seen."""

    records: list[Record]
    cpu_seconds: float
    """Used by the run; as long as that lasted, the client is what was measured."""

    @property
    def cpu_share(self) -> float:
        """The part of a core that was used while the run lasted."""
        seconds = max(r.ended for r in self.records) - min(r.sent for r in self.records)
        return self.cpu_seconds / max(seconds, 1e-9)


class Progress(msgspec.Struct, tag=True):
    """What has ended in one process since it last told."""

    num_requests: int = 0
    num_tokens: int = 0


class BenchError(OctavoError):
    """A benchmark that gave no figures."""


def num_processes(num_streams: int) -> int:
    """How many processes read so many streams at a time: at most half of the cores."""
    wanted = -(-num_streams // STREAMS_PER_PROCESS)
    return max(1, min(wanted, (os.cpu_count() or 1) // 2))


def run_load(
    address: Address,
    requests: Sequence[TimedRequest],
    *,
    max_concurrency: int | None,
    processes: int,
    bar: ProgressBar | None = None,
) -> list[Outcome]:
    """Divide the requests among processes that start at the same time."""
    processes = max(1, min(processes, len(requests), max_concurrency or len(requests)))
    shares = [
        Share(
            address,
            None if max_concurrency is None else _part(max_concurrency, index, processes),
            list(requests[index::processes]),
        )
        for index in range(processes)
    ]
    command = [sys.executable, "-m", "octavo.benchmarking.worker"]
    with ExitStack() as cleanup:
        threads = cleanup.enter_context(ThreadPoolExecutor(processes))
        started: list[subprocess.Popen[bytes]] = []
        for share in shares:
            child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            cleanup.enter_context(child)
            cleanup.callback(child.kill)  # whoever reads from it then reads its end
            started.append(child)
            put(child.stdin, msgspec.msgpack.encode(share))
        for child in started:
            get(child.stdout)  # it is ready
        begin = perf_counter() + START_SECONDS
        for child in started:
            put(child.stdin, msgspec.msgpack.encode(begin))
        told = partial(_outcome, bar=bar, lock=Lock())
        return list(threads.map(told, started))


def _outcome(child: subprocess.Popen[bytes], bar: ProgressBar | None, lock: Lock) -> Outcome:
    """Pass on what a process tells until it has ended."""
    while True:
        told = msgspec.msgpack.decode(get(child.stdout), type=Progress | Outcome)
        if isinstance(told, Outcome):
            return told
        if bar is not None:
            with lock:
                bar.advance(num_requests=told.num_requests, num_tokens=told.num_tokens)


def put(pipe: IO[bytes] | None, data: bytes) -> None:
    """Write a message, after its length."""
    assert pipe is not None
    try:
        rest = memoryview(len(data).to_bytes(8, "little") + data)
        while rest:  # unbuffered, as PYTHONUNBUFFERED makes it, a pipe may take a part
            rest = rest[pipe.write(rest) :]
        pipe.flush()
    except BrokenPipeError:
        raise BenchError("a process of the load has ended; its error is above") from None


def get(pipe: IO[bytes] | None) -> bytes:
    """Read a message."""
    assert pipe is not None
    length = pipe.read(8)
    data = pipe.read(int.from_bytes(length, "little")) if len(length) == 8 else b""
    if len(length) < 8 or len(data) < int.from_bytes(length, "little"):
        raise BenchError("a process of the load has ended; its error is above")
    return data


def _part(total: int, index: int, parts: int) -> int:
    return total // parts + (index < total % parts)
