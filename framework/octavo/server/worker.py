"""``python -m octavo.server.worker``: an HTTP process of a server that has several.

Its standard input brings messages from the parent, each behind its length in four bytes; the
input's end is the parent's.
"""

from __future__ import annotations

import itertools
import os
import socket
import sys
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import uvloop

from octavo.config import EngineConfig
from octavo.engine.client import EngineClient
from octavo.engine.messages import EngineReady
from octavo.engine.worker_link import WorkerLink
from octavo.errors import EngineDeadError
from octavo.frontend import make_frontend
from octavo.observability.function_trace import trace_functions
from octavo.observability.logs import configure_logging, follow_level
from octavo.observability.one_line import escape_records
from octavo.observability.shared_metrics import SharedMetrics
from octavo.server.lifecycle import serve
from octavo.server.processes import READY_LINE, EngineEnded, EngineStarted, ToWorker, WorkerStart
from octavo.server.request_log import LoggedLLM
from octavo_registry import PluginHost

FAILED = 1


def main() -> int:
    """Serve as the parent says; what has become of the engine is the parent's to report."""
    trace_functions()
    pipe, ready = 0, os.dup(1)
    os.dup2(2, 1)  # what plugins print goes to the log
    start = _next(pipe)
    assert isinstance(start, WorkerStart)  # the parent's first message
    configure_logging(default="INFO")
    follow_level(start.log_level)
    escape_records()
    engines = _Engines(start)
    threading.Thread(target=engines.listen, args=(pipe,), name="parent", daemon=True).start()
    host = PluginHost.from_manifest(start.manifest)
    front = make_frontend(
        _own_seed(start),
        host,
        engines.link,
        sequence_ids=itertools.count(start.worker, start.num_workers),
    )
    engine = LoggedLLM.of_frontend(front)
    engine.serve = start.server.serve
    listener = socket.socket(fileno=start.listener)
    try:
        running = serve(
            engine,
            start.server,
            start.model_names,
            start.keys,
            listener,
            started=partial(os.write, ready, READY_LINE),
            shared_metrics=SharedMetrics(_folder_of(start.address), start.worker),
        )
        return uvloop.run(running)
    except EngineDeadError:
        return FAILED
    finally:
        engine.close()


class _Engines:
    """The links to the engines that the parent starts, one after the other."""

    def __init__(self, start: WorkerStart) -> None:
        self._news = threading.Condition()
        self._next: tuple[str, EngineReady] | None = (start.address, start.ready)
        self._current: WorkerLink | None = None

    def link(self, config: EngineConfig, host: PluginHost) -> EngineClient:
        """Wait for the parent's word, and then for the engine."""
        with self._news:
            self._news.wait_for(lambda: self._next is not None)
            assert self._next is not None  # waited for
            address, ready = self._next
            self._next = None
        self._current = WorkerLink(address, ready)
        return self._current

    def listen(self, pipe: int) -> None:
        """Take the parent's messages until there is no parent."""
        while message := _next(pipe):
            if isinstance(message, EngineEnded) and self._current is not None:
                self._current.kill(message.cause)  # it may have seen the end by itself
            elif isinstance(message, EngineStarted):
                with self._news:
                    self._next = (message.address, message.ready)
                    self._news.notify_all()
        os._exit(FAILED)  # nobody is left to say what happens


def _own_seed(start: WorkerStart) -> EngineConfig:
    """Requests without a seed draw one; two workers must not draw the same."""
    model = start.config.model
    return replace(start.config, model=replace(model, seed=model.seed + start.worker))


def _folder_of(address: str) -> Path:
    """Where all processes of the server meet."""
    return Path(address.removeprefix("ipc://")).parent


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
