"""One HTTP process, from its first connection to its end."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

import uvicorn

from octavo.async_llm import AsyncLLM
from octavo.config.server import ServerConfig
from octavo.errors import EngineDeadError, OctavoError
from octavo.observability.shared_metrics import SharedMetrics
from octavo.server.app import add_built_in_routes, make_app
from octavo.server.boundary import DRAINING, ENGINE_ENDED, ENGINE_RESTARTS
from octavo.server.context import ServerContext
from octavo.server.http_protocol import limited_protocol

log = logging.getLogger(__name__)

LIVENESS_SECONDS: Final = 0.1
"""How long an engine's death or an emptied server can stay unseen."""
FAREWELL_SECONDS: Final = 2.0
"""For telling clients that the engine has ended."""
KEEP_ALIVE_SECONDS: Final = 75


async def serve(
    engine: AsyncLLM,
    config: ServerConfig,
    model_names: tuple[str, ...],
    keys: tuple[str, ...],
    listener: socket.socket,
    *,
    started: Callable[[], object],
    shared_metrics: SharedMetrics | None = None,
) -> int:
    """Answer until a signal, and return 0 if all that was in flight has been answered.

    Raises EngineDeadError with the cause when the engine has ended, and is not to be restarted.
    """
    host = engine.host
    add_built_in_routes(host.routes)
    context = ServerContext(engine=engine, host=host, config=config, model_names=model_names)
    server = _Server(_uvicorn_config(context, keys))
    context.meter.shared = shared_metrics
    watching = asyncio.create_task(context.meter.watch())
    signalled = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, signalled.set)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    started()
    try:
        await _watch_engine(context, signalled)
        await _drain(context, signalled)
        if engine.end is not None:
            raise EngineDeadError(engine.end)
        return 0 if context.gate.num_inside == 0 else 1
    finally:
        server.should_exit = True
        server.force_exit = context.gate.num_inside > 0
        await serving
        watching.cancel()


def announce(url: str, model_name: str) -> None:
    """Tell the user, whatever the log's level, that requests are answered."""
    sys.stderr.write(f"{model_name} is served at {url} (Ctrl-C ends it)\n")
    sys.stderr.flush()


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to ``serve``, which drains first."""
        yield


def _uvicorn_config(context: ServerContext, keys: tuple[str, ...]) -> uvicorn.Config:
    listen, limits = context.config.listen, context.config.limits
    return uvicorn.Config(
        make_app(context, keys),
        http=limited_protocol(limits),
        log_config=None,
        log_level=logging.WARNING,
        access_log=False,
        server_header=False,
        date_header=False,
        ws="none",
        lifespan="off",
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        ssl_certfile=listen.ssl_certfile,
        ssl_keyfile=listen.ssl_keyfile,
        ssl_keyfile_password=listen.ssl_keyfile_password,
        ssl_ca_certs=listen.ssl_ca_certs,
        ssl_cert_reqs=ssl.CERT_NONE if listen.ssl_ca_certs is None else ssl.CERT_REQUIRED,
    )


async def _watch_engine(context: ServerContext, signalled: asyncio.Event) -> None:
    """Return at a signal; else when the engine has ended and is not to be restarted."""
    engine, gate, config = context.engine, context.gate, context.config
    restarts = 1 if config.serve.on_engine_death == "restart" else 0
    most_seconds = 2 * config.limits.hang_seconds
    while not await _is_set(signalled):
        if engine.end is None:
            if engine.alive and engine.seconds_without_progress > most_seconds:
                engine.kill(
                    f"the engine has made no step for {most_seconds:g} s (twice --hang-seconds) "
                    "and was killed"
                )
            continue
        if restarts == 0:
            gate.closed = ENGINE_ENDED
            return
        restarts -= 1
        log.error("another engine is started, since %s", engine.end)
        gate.closed = ENGINE_RESTARTS
        try:
            await asyncio.to_thread(engine.restart)
        except OctavoError as error:
            raise EngineDeadError(f"no other engine could be started: {error}") from error
        gate.closed = None
        log.info("another engine has started")


async def _drain(context: ServerContext, signalled: asyncio.Event) -> None:
    """Let in nothing new, and wait for what is in flight until the time or a second signal."""
    gate, loop = context.gate, asyncio.get_running_loop()
    seconds = FAREWELL_SECONDS
    if context.engine.end is None:
        gate.closed = DRAINING
        seconds = context.config.limits.drain_timeout_seconds
        log.info("shutting down: %d requests are in flight", gate.num_inside)
    deadline = loop.time() + seconds
    signalled.clear()
    while gate.num_inside and loop.time() < deadline:
        if await _is_set(signalled):
            break
    if gate.num_inside:
        log.warning("%d requests are cut off", gate.num_inside)


async def _is_set(signalled: asyncio.Event) -> bool:
    """Wait a moment for a signal."""
    with suppress(TimeoutError):
        await asyncio.wait_for(signalled.wait(), LIVENESS_SECONDS)
    return signalled.is_set()
