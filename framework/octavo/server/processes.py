"""The processes of a server: HTTP is answered in this one, or in workers on the one engine."""

from __future__ import annotations

import itertools
import logging
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from octavo.config import EngineConfig
from octavo.config.model_folder import open_model
from octavo.config.server import ServerConfig
from octavo.engine.messages import EngineReady
from octavo.engine.process_client import ProcessClient, how_it_ended
from octavo.errors import EngineDeadError, OctavoError
from octavo.frontend import as_found, start_frontend
from octavo.options import read_options
from octavo.server.http_thread import HttpThread
from octavo.server.lifecycle import (
    FAREWELL_SECONDS,
    LIVENESS_SECONDS,
    Engine,
    HttpSide,
    Interrupted,
    Signals,
    announce,
    supervise,
)
from octavo.server.listening import bind_another, url_of
from octavo.server.request_log import LoggedLLM
from octavo_registry import PluginHost
from octavo_registry.manifest import Manifest

log = logging.getLogger(__name__)

WORKER_COMMAND: Final = (sys.executable, "-P", "-m", "octavo.server.worker")
PING_SECONDS: Final = 1.0
READY_LINE: Final = b"ready\n"
"""What a worker writes to its standard output when it answers requests."""


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
    server: ServerConfig
    """With this worker's part of the limits."""
    model_names: tuple[str, ...]
    keys: tuple[str, ...]
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


def serve(
    options: Mapping[str, Any],
    config: ServerConfig,
    model_names: tuple[str, ...],
    keys: tuple[str, ...],
    listeners: list[socket.socket],
) -> int:
    """Answer until a signal; see ``supervise``. One that comes before the start is over ends it."""
    start = _start_in_one if len(listeners) == 1 else _start_workers
    url = url_of(config.listen, listeners[0])
    with Signals() as signals, ExitStack() as cleanup:
        try:
            with signals.interrupting():
                engine, http = start(cleanup, options, config, model_names, keys, listeners)
        except Interrupted:
            return 0
        announce(url, model_names[0])
        return supervise(engine, http, config, signals)


def _start_in_one(
    cleanup: ExitStack,
    options: Mapping[str, Any],
    config: ServerConfig,
    model_names: tuple[str, ...],
    keys: tuple[str, ...],
    listeners: list[socket.socket],
) -> tuple[Engine, HttpSide]:
    front = start_frontend(options, engine_process=True, caller="octavo serve")
    engine = LoggedLLM.of_frontend(front)
    cleanup.callback(engine.close)
    engine.serve = config.serve
    return engine, HttpThread(engine, config, model_names, keys, listeners[0])


def _start_workers(
    cleanup: ExitStack,
    options: Mapping[str, Any],
    config: ServerConfig,
    model_names: tuple[str, ...],
    keys: tuple[str, ...],
    listeners: list[socket.socket],
) -> tuple[Engine, HttpSide]:
    given = read_options(options, caller="octavo serve")
    host = PluginHost.discover(
        plugins=given.plugins, disabled=given.disable_plugins, options=given.config.plugin_options
    )
    folder = Path(tempfile.mkdtemp(prefix="octavo-"))
    cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
    engine_config = as_found(given.config, open_model(given.config.model, host))
    engine = SharedEngine(engine_config, host.manifest(), folder, len(listeners))
    cleanup.callback(engine.close)
    start = partial(
        WorkerStart,
        config=engine_config,
        manifest=host.manifest(),
        server=_part_of(config, len(listeners)),
        model_names=model_names,
        keys=keys,
        log_level=logging.getLogger().getEffectiveLevel(),
        num_workers=len(listeners),
    )
    port = 0 if config.listen.uds else listeners[0].getsockname()[1]
    another = partial(bind_another, config.listen, listeners[0], port)
    workers = Workers(engine, start, listeners, another)
    cleanup.callback(workers.close)
    workers.wait_until_ready()
    if config.listen.uds is None:
        for listener in listeners:
            listener.close()  # while one is open, it is dealt connections: workers have theirs
    return engine, workers


class SharedEngine:
    """The engine of several workers, as the process that has started them sees it."""

    def __init__(
        self, config: EngineConfig, manifest: Manifest, folder: Path, num_workers: int
    ) -> None:
        self._config = config
        self._manifest = manifest
        self._new_addresses = (f"ipc://{folder}/worker-{i}" for i in itertools.count())
        self._addresses = [""] * num_workers
        self._asked_seconds = 0.0
        self._start()

    @property
    def end(self) -> str | None:
        """Why it has ended; None while it has not."""
        try:
            self._client.poll(0)
        except EngineDeadError as error:
            return str(error)
        return None

    @property
    def seconds_without_progress(self) -> float:
        """How long it has not answered a ping, which it does between steps."""
        now = time.monotonic()
        if self._client.has_answered and now - self._asked_seconds > PING_SECONDS:
            with suppress(EngineDeadError):
                self._client.ping()
            self._asked_seconds = now
        return 0.0 if self._client.has_answered else now - self._asked_seconds

    def told(self, place: int) -> EngineStarted:
        """What the worker at this place has to know of it."""
        return EngineStarted(self._addresses[place], self._client.ready)

    def kill(self, cause: str) -> None:
        """End it at once, for this reason."""
        self._client.kill(cause)

    def restart(self) -> None:
        """Start another in its place; all workers get new addresses."""
        self._client.close()  # its process may still hold the device's memory
        self._start()

    def replace_worker(self, place: int) -> None:
        """Drop all that a lost worker has asked for; the next one gets a new address."""
        self._addresses[place] = next(self._new_addresses)
        with suppress(EngineDeadError):
            self._client.replace_worker(place, self._addresses[place])

    def close(self) -> None:
        """End it."""
        self._client.close()

    def _start(self) -> None:
        self._addresses = [next(self._new_addresses) for _ in self._addresses]
        self._client = ProcessClient(
            self._config, self._manifest, worker_addresses=tuple(self._addresses)
        )
        self._asked_seconds = time.monotonic()


class Workers:
    """The HTTP processes of a server. One that is lost is replaced, as often as that happens.

    The engine and the others go on meanwhile: to end the server would cost all requests, and
    loading the model again.
    """

    def __init__(
        self,
        engine: SharedEngine,
        start: Callable[..., WorkerStart],
        listeners: Sequence[socket.socket],
        bind: Callable[[], socket.socket],
    ) -> None:
        """``start`` takes what workers do not share; ``bind`` is for those that come later."""
        self._engine = engine
        self._make_start = start
        self._bind = bind
        self._numbers = itertools.count()
        self._workers: list[_Worker] = []
        for place, listener in enumerate(listeners):
            self._workers.append(self._start(place, listener))

    @property
    def is_running(self) -> bool:
        """Whether one still runs."""
        return any(worker.is_running for worker in self._workers)

    @property
    def code(self) -> int:
        """0 if all have ended well."""
        return int(any(worker.code for worker in self._workers))

    def wait_until_ready(self) -> None:
        """Wait for all to answer requests."""
        while not all(worker.is_ready() for worker in self._workers):
            if self._engine.end is not None:  # a worker would wait for it for ever
                raise EngineDeadError(self._engine.end)
            self.check()
            time.sleep(LIVENESS_SECONDS)

    def check(self) -> None:
        """Replace those that have ended; raise for one that has done so while it started."""
        for place, worker in enumerate(self._workers):
            if worker.is_running:
                continue
            if not worker.is_ready():
                raise OctavoError(f"HTTP worker {place} could not start; its log says why")
            log.error(
                "another HTTP worker is started, since HTTP worker %d %s",
                place,
                how_it_ended(worker.code),
            )
            self._engine.replace_worker(place)
            self._replace(place)

    def engine_ended(self, cause: str, *, is_last: bool) -> None:
        """Fail what is in flight and refuse what comes."""
        self._tell(EngineEnded(cause, is_last))

    def engine_started(self) -> None:
        """Let requests in again; who still waits for the old engine is started anew."""
        for place, worker in enumerate(self._workers):
            if worker.is_ready():
                worker.tell(self._engine.told(place))
            else:
                self._replace(place)

    def drain(self) -> None:
        """Let them end when all that is in flight has been answered."""
        self._tell(Drain())

    def cut(self) -> None:
        """Let them end at once."""
        self._tell(Cut())

    def close(self) -> None:
        """End what is left."""
        for worker in self._workers:
            worker.end()

    def _replace(self, place: int) -> None:
        self._workers[place].end()
        with self._bind() as listener:
            self._workers[place] = self._start(place, listener)

    def _start(self, place: int, listener: socket.socket) -> _Worker:
        return _Worker(
            self._make_start(
                place=place,
                number=next(self._numbers),
                listener=listener.fileno(),
                engine=self._engine.told(place),
            )
        )

    def _tell(self, message: ToWorker) -> None:
        for worker in self._workers:
            worker.tell(message)


class _Worker:
    """An HTTP process; it ends by itself when its standard input does."""

    def __init__(self, start: WorkerStart) -> None:
        self._is_ready = False
        self._process = subprocess.Popen(
            WORKER_COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            pass_fds=[start.listener],
            start_new_session=True,  # Ctrl-C in the terminal is for the parent only
        )
        self.tell(start)

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def code(self) -> int:
        return self._process.wait()

    def is_ready(self) -> bool:
        """Whether it has come to answer requests, though it may have ended since."""
        pipe = self._process.stdout
        assert pipe is not None  # a pipe was asked for
        if not self._is_ready and select.select([pipe], [], [], 0)[0]:
            self._is_ready = pipe.readline() == READY_LINE
        return self._is_ready

    def tell(self, message: ToWorker) -> None:
        data = msgspec.msgpack.encode(message)
        assert self._process.stdin is not None  # a pipe was asked for
        with suppress(OSError):  # ``check`` sees that it has ended
            self._process.stdin.write(len(data).to_bytes(4, "big") + data)
            self._process.stdin.flush()

    def end(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        try:
            self._process.wait(FAREWELL_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _part_of(config: ServerConfig, num_workers: int) -> ServerConfig:
    """What one worker may take of what all may."""
    limits = replace(
        config.limits,
        max_total_body_mib=config.limits.max_total_body_mib / num_workers,
        max_connections=max(1, config.limits.max_connections // num_workers),
    )
    return replace(config, limits=limits)
