"""The processes of a server: the HTTP side in this one, or in workers that this one watches."""

from __future__ import annotations

import logging
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec
import uvloop

from octavo.config import EngineConfig
from octavo.config.model_folder import open_model
from octavo.config.server import ServerConfig
from octavo.detokenizing.processor import OutputProcessor
from octavo.engine.messages import EngineReady
from octavo.engine.process_client import ProcessClient
from octavo.engine.thread import EngineThread
from octavo.errors import EngineDeadError, OctavoError
from octavo.frontend import as_found, start_frontend
from octavo.options import read_options
from octavo.server.lifecycle import FAREWELL_SECONDS, LIVENESS_SECONDS, announce, serve
from octavo.server.listening import url_of
from octavo.server.request_log import LoggedLLM
from octavo_registry import PluginHost
from octavo_registry.manifest import Manifest

log = logging.getLogger(__name__)

WORKER_COMMAND: Final = (sys.executable, "-P", "-m", "octavo.server.worker")
PING_SECONDS: Final = 1.0
READY_LINE: Final = b"ready\n"
"""What a worker writes to its standard output when it answers requests."""


class WorkerStart(msgspec.Struct, frozen=True, tag=True):
    """First message to a worker, on its standard input."""

    config: EngineConfig
    manifest: Manifest
    server: ServerConfig
    """With this worker's part of the limits."""
    model_names: tuple[str, ...]
    keys: tuple[str, ...]
    listener: int
    """The listening socket's descriptor."""
    worker: int
    num_workers: int
    address: str
    ready: EngineReady
    log_level: int


class EngineEnded(msgspec.Struct, frozen=True, tag=True):
    """To a worker: the engine has ended."""

    cause: str


class EngineStarted(msgspec.Struct, frozen=True, tag=True):
    """To a worker: there is another engine, which will connect to this address."""

    address: str
    ready: EngineReady


ToWorker = WorkerStart | EngineEnded | EngineStarted


def serve_in_one(
    options: Mapping[str, Any],
    config: ServerConfig,
    model_names: tuple[str, ...],
    keys: tuple[str, ...],
    listeners: list[socket.socket],
) -> int:
    """Answer in this process; see ``serve``."""
    front = start_frontend(options, engine_process=True, caller="octavo serve")
    engine = LoggedLLM.of_frontend(front)
    engine.serve = config.serve

    def started() -> None:
        announce(url_of(config.listen, listeners[0]), model_names[0])

    try:
        return uvloop.run(serve(engine, config, model_names, keys, listeners[0], started=started))
    finally:
        engine.close()


def serve_in_workers(
    options: Mapping[str, Any],
    config: ServerConfig,
    model_names: tuple[str, ...],
    keys: tuple[str, ...],
    listeners: list[socket.socket],
) -> int:
    """Answer in ``api_workers`` processes on the one engine that this process starts."""
    given = read_options(options, caller="octavo serve")
    host = PluginHost.discover(
        plugins=given.plugins, disabled=given.disable_plugins, options=given.config.plugin_options
    )
    engine_config = as_found(given.config, open_model(given.config.model, host))
    with ExitStack() as cleanup:
        folder = Path(tempfile.mkdtemp(prefix="octavo-"))
        cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
        house = _House(folder, engine_config, host.manifest(), config, model_names, keys, listeners)
        cleanup.callback(house.close)
        return house.run()


class _House:
    """One engine, its HTTP workers, and who looks after them."""

    def __init__(
        self,
        folder: Path,
        engine_config: EngineConfig,
        manifest: Manifest,
        config: ServerConfig,
        model_names: tuple[str, ...],
        keys: tuple[str, ...],
        listeners: list[socket.socket],
    ) -> None:
        self._folder = folder
        self._engine_config = engine_config
        self._manifest = manifest
        self._config = config
        self._model_names = model_names
        self._keys = keys
        self._listeners = listeners
        self._num_engines = 0
        self._workers: list[_Worker] = []
        self._engine, self._ready = self._start_engine()

    def run(self) -> int:
        """Watch until a signal or an end; returns the exit code."""
        with _signals() as received:
            for place in range(len(self._listeners)):
                self._workers.append(self._start_worker(place))
            for worker in self._workers:
                while not worker.is_ready():
                    if self._engine.end is not None:  # a worker would wait for it for ever
                        raise EngineDeadError(self._engine.end)
            announce(url_of(self._config.listen, self._listeners[0]), self._model_names[0])
            for listener in self._listeners:
                listener.close()  # while one is open, it is dealt connections: workers have theirs
            self._watch(received)
            return self._end_workers(received)

    def close(self) -> None:
        """End what is left; workers end with their standard input."""
        for worker in self._workers:
            worker.end()
        self._engine.close()

    def _watch(self, received: list[int]) -> None:
        """Return at a signal; else raise for what has ended."""
        restarts = 1 if self._config.serve.on_engine_death == "restart" else 0
        most_seconds = 2 * self._config.limits.hang_seconds
        ping, asked = self._engine.call("stats"), time.monotonic()
        while not received:
            time.sleep(LIVENESS_SECONDS)
            for worker in self._workers:
                worker.check()
            if self._engine.end is not None:
                if not restarts:
                    self._tell(EngineEnded(self._engine.end))
                    self._end_workers([])
                    raise EngineDeadError(self._engine.end)
                restarts -= 1
                log.error("another engine is started, since %s", self._engine.end)
                self._tell(EngineEnded(self._engine.end))
                self._restart_engine()
                ping, asked = self._engine.call("stats"), time.monotonic()
            elif ping.done() and time.monotonic() - asked > PING_SECONDS:
                with suppress(EngineDeadError):
                    ping, asked = self._engine.call("stats"), time.monotonic()
            elif not ping.done() and time.monotonic() - asked > most_seconds:
                self._engine.kill(
                    f"the engine has made no step for {most_seconds:g} s (twice --hang-seconds) "
                    "and was killed"
                )

    def _start_engine(self) -> tuple[EngineThread, EngineReady]:
        self._num_engines += 1
        client = ProcessClient(
            self._engine_config,
            self._manifest,
            worker_addresses=[self._address(i) for i in range(len(self._listeners))],
        )
        return EngineThread(client, OutputProcessor(None)), client.ready

    def _restart_engine(self) -> None:
        self._engine.close()  # its process may still hold the device's memory
        try:
            self._engine, self._ready = self._start_engine()
        except OctavoError as error:
            raise EngineDeadError(f"no other engine could be started: {error}") from error
        for place, worker in enumerate(self._workers):
            worker.tell(EngineStarted(self._address(place), self._ready))
        log.info("another engine has started")

    def _address(self, place: int) -> str:
        return f"ipc://{self._folder}/worker-{place}-{self._num_engines}"

    def _start_worker(self, place: int) -> _Worker:
        return _Worker(
            WorkerStart(
                config=self._engine_config,
                manifest=self._manifest,
                server=_part_of(self._config, len(self._listeners)),
                model_names=self._model_names,
                keys=self._keys,
                listener=self._listeners[place].fileno(),
                worker=place,
                num_workers=len(self._listeners),
                address=self._address(place),
                ready=self._ready,
                log_level=logging.getLogger().getEffectiveLevel(),
            )
        )

    def _tell(self, message: ToWorker) -> None:
        for worker in self._workers:
            worker.tell(message)

    def _end_workers(self, received: list[int]) -> int:
        """Pass signals on until all workers have ended; returns the worst of their codes."""
        is_dead = self._engine.end is not None
        seconds = FAREWELL_SECONDS if is_dead else self._config.limits.drain_timeout_seconds
        deadline = time.monotonic() + seconds + FAREWELL_SECONDS
        num_passed = 0
        while any(worker.is_running for worker in self._workers):
            if len(received) > num_passed:
                num_passed = len(received)
                for worker in self._workers:
                    worker.signal(signal.SIGTERM)
            if not is_dead and self._engine.end is not None:
                is_dead = True
                self._tell(EngineEnded(self._engine.end))
            if time.monotonic() > deadline:
                return 1
            time.sleep(LIVENESS_SECONDS / 2)
        if self._engine.end is not None:
            raise EngineDeadError(self._engine.end)
        return max(worker.code for worker in self._workers)


class _Worker:
    """An HTTP process; it ends by itself when its standard input does."""

    def __init__(self, start: WorkerStart) -> None:
        self._place = start.worker
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
        return abs(self._process.wait())

    def is_ready(self) -> bool:
        """Wait a moment for it to answer requests; raise when it has ended instead."""
        pipe = self._process.stdout
        assert pipe is not None  # a pipe was asked for
        if not select.select([pipe], [], [], LIVENESS_SECONDS)[0]:
            return False
        if pipe.readline() != READY_LINE:
            raise OctavoError(f"HTTP worker {self._place} could not start; its log says why")
        return True

    def check(self) -> None:
        """Raise when it has ended and nobody has told it to."""
        if not self.is_running:
            raise OctavoError(f"HTTP worker {self._place} has ended with code {self.code}")

    def tell(self, message: ToWorker) -> None:
        data = msgspec.msgpack.encode(message)
        assert self._process.stdin is not None  # a pipe was asked for
        with suppress(OSError):  # ``check`` sees that it has ended
            self._process.stdin.write(len(data).to_bytes(4, "big") + data)
            self._process.stdin.flush()

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

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


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM instead of ending by them."""
    received: list[int] = []
    before = {
        number: signal.signal(number, lambda number, frame: received.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _part_of(config: ServerConfig, num_workers: int) -> ServerConfig:
    """What one worker may take of what all may."""
    limits = replace(
        config.limits,
        max_total_body_mib=config.limits.max_total_body_mib / num_workers,
        max_connections=max(1, config.limits.max_connections // num_workers),
    )
    return replace(config, limits=limits)
