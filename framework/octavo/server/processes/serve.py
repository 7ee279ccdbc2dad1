"""The processes of a server: HTTP is answered in this one, or in workers on the one engine."""

from __future__ import annotations

import logging
import shutil
import socket
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from octavo.frontend.frontend import as_found, open_checked, read_and_discover, start_frontend
from octavo.server.apis.responses.store import open_store
from octavo.server.http.listening import bind_another, url_of
from octavo.server.processes.http_thread import HttpThread, Service
from octavo.server.processes.lifecycle import (
    HttpSide,
    Interrupted,
    Signals,
    WatchedEngine,
    announce,
    supervise,
)
from octavo.server.processes.messages import WorkerStart
from octavo.server.processes.shared_engine import SharedEngine
from octavo.server.processes.workers import Workers
from octavo.server.request_log import LoggedLLM


def serve(options: Mapping[str, Any], service: Service, listeners: list[socket.socket]) -> int:
    """Answer until a signal; see ``supervise``. One that comes before the start is over ends it."""
    if service.config.serve.responses_store is not None and (
        store := open_store(service.config.serve)
    ):
        store.close()  # a file that cannot be used ends the start here, before a model is loaded
    start = _start_in_one if len(listeners) == 1 else _start_workers
    url = url_of(service.config.listen, listeners[0])
    with Signals() as signals, ExitStack() as cleanup:
        try:
            with signals.interrupting():
                engine, http = start(cleanup, options, service, listeners)
        except Interrupted:
            return 0
        announce(url, service.model_names[0])
        code = supervise(engine, http, service.config, signals)
        if code:
            engine.kill("the server was cut off")  # asked to end, it would end its step first
        return code


def _start_in_one(
    cleanup: ExitStack,
    options: Mapping[str, Any],
    service: Service,
    listeners: list[socket.socket],
) -> tuple[WatchedEngine, HttpSide]:
    front = start_frontend(options, engine_process=True, caller="octavo serve")
    engine = LoggedLLM.of_frontend(front)
    cleanup.callback(engine.close)
    engine.serve = service.config.serve
    return engine, HttpThread(engine, service, listeners[0])


def _start_workers(
    cleanup: ExitStack,
    options: Mapping[str, Any],
    service: Service,
    listeners: list[socket.socket],
) -> tuple[WatchedEngine, HttpSide]:
    config, host = read_and_discover(options, caller="octavo serve")
    config = as_found(config, open_checked(config, host, caller="octavo serve"))
    folder = Path(tempfile.mkdtemp(prefix="octavo-"))
    cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
    engine = SharedEngine(config, host.manifest(), folder, len(listeners))
    cleanup.callback(engine.close)
    start = partial(
        WorkerStart,
        config=config,
        manifest=host.manifest(),
        service=_part_of(service, len(listeners), folder),
        log_level=logging.getLogger().getEffectiveLevel(),
        num_workers=len(listeners),
    )
    listen = service.config.listen
    port = 0 if listen.uds else listeners[0].getsockname()[1]
    bind = partial(bind_another, listen, listeners[0], port)
    cleanup.enter_context(bind())  # keeps the port while all workers are lost
    workers = Workers(engine, start, listeners, bind)
    cleanup.callback(workers.close)
    workers.wait_until_ready()
    if listen.uds is None:
        for listener in listeners:
            listener.close()  # while one is open, it is dealt connections: workers have theirs
    return engine, workers


def _part_of(service: Service, num_workers: int, folder: Path) -> Service:
    """What one worker may take of what all may; answers are kept where all find them."""
    config = service.config
    limits = replace(
        config.limits,
        max_total_body_mib=config.limits.max_total_body_mib / num_workers,
        max_connections=max(1, config.limits.max_connections // num_workers),
    )
    store = config.serve.responses_store or str(folder / "responses.sqlite")
    serve = replace(config.serve, responses_store=store)
    return replace(service, config=replace(config, limits=limits, serve=serve))
