"""``python -m octavo.server.processes.worker``: an HTTP process of a server that has several.

Its standard input brings messages from the parent, each behind its length in four bytes; the
input's end is the parent's.
"""

from __future__ import annotations

import itertools
import logging
import os
import shutil
import signal
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final

from octavo.config import EngineConfig
from octavo.config.server import ServerConfig
from octavo.engine.client import EngineClient
from octavo.engine.worker_link import WorkerLink
from octavo.frontend.async_llm import AsyncLLM
from octavo.frontend.frontend import make_frontend
from octavo.model_folder import open_model
from octavo.observability.function_trace import trace_functions
from octavo.observability.logs import configure_logging, follow_level
from octavo.observability.one_line import escape_records
from octavo.observability.shared_metrics import SharedMetrics
from octavo.server.processes.http_thread import HttpThread
from octavo.server.processes.lifecycle import LIVENESS_SECONDS, Signals, leave, wind_down
from octavo.server.processes.messages import (
    READY_LINE,
    Cut,
    Drain,
    EngineEnded,
    EngineStarted,
    ToWorker,
    WorkerStart,
    receive,
)
from octavo.server.request_log import LoggedLLM
from octavo_registry import PluginHost

log = logging.getLogger("octavo.server.processes.worker")
PIPE: Final = 0
"""Standard input."""
FAILED: Final = 1
ALONE_SECONDS: Final = 1.0
"""How long a parent may take to tell that the engine has ended, which a worker may see first."""


def main() -> int:
    """Serve as the parent says, which decides what becomes of the engine and of this process."""
    trace_functions()
    ready = os.dup(1)
    os.dup2(2, 1)  # what plugins print goes to the log
    start = receive(PIPE)
    assert isinstance(start, WorkerStart)  # the parent's first message
    configure_logging(default="INFO")
    follow_level(start.log_level)
    escape_records()
    orders: SimpleQueue[ToWorker] = SimpleQueue()
    for number in (signal.SIGINT, signal.SIGTERM):  # as service managers send to all processes
        signal.signal(number, lambda number, frame: orders.put(Drain()))
    folder = Path(start.engine.address.removeprefix("ipc://")).parent
    threading.Thread(target=_listen, args=(orders, folder), name="parent", daemon=True).start()
    engines: SimpleQueue[EngineStarted] = SimpleQueue()
    engines.put(start.engine)

    def link(config: EngineConfig, host: PluginHost) -> EngineClient:
        started = engines.get_nowait()
        return WorkerLink(started.address, started.ready)

    config, host = _own_seed(start), PluginHost.from_manifest(start.manifest)
    front = make_frontend(
        config,
        host,
        open_model(config.model, host),
        link,
        sequence_ids=itertools.count(start.place, start.num_workers),
    )
    engine = LoggedLLM.of_frontend(front)
    engine.serve = start.service.config.serve
    try:
        http = HttpThread(
            engine,
            start.service,
            socket.socket(fileno=start.listener),
            shared_metrics=SharedMetrics(folder, start.number),
        )
        os.write(ready, READY_LINE)
        return _obey(orders, engines, engine, http, start.service.config)
    finally:
        engine.close()


def _obey(
    orders: SimpleQueue[ToWorker],
    engines: SimpleQueue[EngineStarted],
    engine: AsyncLLM,
    http: HttpThread,
    config: ServerConfig,
) -> int:
    """Do as the parent says; returns the exit code."""
    is_told = False
    well_seconds = time.monotonic()
    while http.is_running:
        if is_told or engine.end is None:
            well_seconds = time.monotonic()
        elif time.monotonic() - well_seconds > ALONE_SECONDS:
            # The engine goes on, but this process has lost it: another must take its place.
            log.error("this HTTP worker has lost its engine: %s", engine.end)
            wind_down(engine, http, config, Signals())
            return FAILED
        try:
            order = orders.get(timeout=LIVENESS_SECONDS)
        except Empty:
            continue
        match order:
            case EngineEnded(cause, is_last):
                is_told = True
                http.engine_ended(cause, is_last=is_last)
            case EngineStarted():
                engines.put(order)
                engine.restart()
                http.engine_started()
                is_told = False
            case Drain():
                http.drain()
            case Cut():
                http.cut()
    return http.code


def _listen(orders: SimpleQueue[ToWorker], folder: Path) -> None:
    """Take the parent's messages until there is no parent; nobody else then empties its folder."""
    while order := receive(PIPE):
        orders.put(order)
    for _ in range(3):  # another worker may write there until it has ended
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(FAILED)  # nobody is left to say what happens


def _own_seed(start: WorkerStart) -> EngineConfig:
    """Requests without a seed take one; no two workers may take the same."""
    model = start.config.model
    return replace(start.config, model=replace(model, seed=model.seed + start.place))


if __name__ == "__main__":
    leave(main())
