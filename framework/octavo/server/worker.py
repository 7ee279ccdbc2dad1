"""``python -m octavo.server.worker``: an HTTP process of a server that has several.

Its standard input brings messages from the parent, each behind its length in four bytes; the
input's end is the parent's.
"""

from __future__ import annotations

import itertools
import os
import signal
import socket
import sys
import threading
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue

import msgspec

from octavo.async_llm import AsyncLLM
from octavo.config import EngineConfig
from octavo.engine.client import EngineClient
from octavo.engine.worker_link import WorkerLink
from octavo.frontend import make_frontend
from octavo.observability.function_trace import trace_functions
from octavo.observability.logs import configure_logging, follow_level
from octavo.observability.one_line import escape_records
from octavo.observability.shared_metrics import SharedMetrics
from octavo.server.http_thread import HttpThread
from octavo.server.lifecycle import LIVENESS_SECONDS
from octavo.server.processes import (
    READY_LINE,
    Cut,
    Drain,
    EngineEnded,
    EngineStarted,
    ToWorker,
    WorkerStart,
)
from octavo.server.request_log import LoggedLLM
from octavo_registry import PluginHost

FAILED = 1


def main() -> int:
    """Serve as the parent says, which decides what becomes of the engine and of this process."""
    trace_functions()
    pipe, ready = 0, os.dup(1)
    os.dup2(2, 1)  # what plugins print goes to the log
    start = _next(pipe)
    assert isinstance(start, WorkerStart)  # the parent's first message
    configure_logging(default="INFO")
    follow_level(start.log_level)
    escape_records()
    orders: SimpleQueue[ToWorker] = SimpleQueue()
    for number in (signal.SIGINT, signal.SIGTERM):  # as service managers send to all processes
        signal.signal(number, lambda number, frame: orders.put(Drain()))
    threading.Thread(target=_listen, args=(pipe, orders), name="parent", daemon=True).start()
    engines: SimpleQueue[EngineStarted] = SimpleQueue()
    engines.put(start.engine)

    def link(config: EngineConfig, host: PluginHost) -> EngineClient:
        started = engines.get_nowait()
        return WorkerLink(started.address, started.ready)

    front = make_frontend(
        _own_seed(start),
        PluginHost.from_manifest(start.manifest),
        link,
        sequence_ids=itertools.count(start.place, start.num_workers),
    )
    engine = LoggedLLM.of_frontend(front)
    engine.serve = start.server.serve
    try:
        http = HttpThread(
            engine,
            start.server,
            start.model_names,
            start.keys,
            socket.socket(fileno=start.listener),
            shared_metrics=SharedMetrics(_folder_of(start), start.number),
        )
        os.write(ready, READY_LINE)
        _obey(orders, engines, engine, http)
        return http.code
    finally:
        engine.close()


def _obey(
    orders: SimpleQueue[ToWorker],
    engines: SimpleQueue[EngineStarted],
    engine: AsyncLLM,
    http: HttpThread,
) -> None:
    while http.is_running:
        try:
            order = orders.get(timeout=LIVENESS_SECONDS)
        except Empty:
            continue
        match order:
            case EngineEnded(cause, is_last):
                http.engine_ended(cause, is_last=is_last)
            case EngineStarted():
                engines.put(order)
                engine.restart()
                http.engine_started()
            case Drain():
                http.drain()
            case Cut():
                http.cut()


def _listen(pipe: int, orders: SimpleQueue[ToWorker]) -> None:
    """Take the parent's messages until there is no parent."""
    while order := _next(pipe):
        orders.put(order)
    os._exit(FAILED)  # nobody is left to say what happens


def _own_seed(start: WorkerStart) -> EngineConfig:
    """Requests without a seed draw one; two workers must not draw the same."""
    model = start.config.model
    return replace(start.config, model=replace(model, seed=model.seed + start.place))


def _folder_of(start: WorkerStart) -> Path:
    """Where all processes of the server meet."""
    return Path(start.engine.address.removeprefix("ipc://")).parent


def _next(pipe: int) -> ToWorker | None:
    size = _read(pipe, 4)
    if len(size) < 4:
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


if __name__ == "__main__":
    sys.exit(main())
