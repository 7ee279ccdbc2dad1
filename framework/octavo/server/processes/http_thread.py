"""An HTTP server in a thread of its own, so that its process can do other things meanwhile."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import uvicorn
import uvloop

from octavo.config.server import ListenConfig, ServerConfig
from octavo.errors import OctavoError
from octavo.frontend.async_llm import AsyncLLM
from octavo.observability.logs import set_http_level
from octavo.observability.shared_metrics import SharedMetrics
from octavo.server.app import add_built_in_routes, make_app
from octavo.server.context import ServerContext
from octavo.server.http.boundary import (
    DRAINING,
    ENGINE_ENDED,
    ENGINE_RESTARTS,
    Gate,
    log_access,
    route_of,
)
from octavo.server.http.certificates import TICKS, CertificateWatch
from octavo.server.http.keys import NO_KEYS, Keys
from octavo.server.http.listening import is_local
from octavo.server.http.protocol import Refusal, limited_protocol
from octavo.server.processes.loop_watch import LoopWatch
from octavo.wording import counted
from octavo_registry.faults import one_line

log = logging.getLogger(__name__)

KEEP_ALIVE_SECONDS: Final = 75
SWITCH_SECONDS: Final = 0.001
"""After which another thread of this process hands the interpreter to the event loop.

Python's 5 ms, each time that the loop has waited for a socket, made its lag 7.9 ms at the 99th
percentile of 1,000 streams; with this it is 3.4 ms.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """How a process is to answer, whatever engine it has."""

    config: ServerConfig
    model_names: tuple[str, ...]
    keys: Keys = NO_KEYS


class HttpThread:
    """Answers, once it is made, until it has drained; its methods are for any thread."""

    def __init__(
        self,
        engine: AsyncLLM,
        service: Service,
        listener: socket.socket,
        *,
        shared_metrics: SharedMetrics | None = None,
    ) -> None:
        host = engine.host
        add_built_in_routes(host.routes)
        context = ServerContext(
            engine=engine,
            host=host,
            config=service.config,
            model_names=service.model_names,
            is_local=is_local(listener),
        )
        context.adapters.start()
        context.meter.shared = shared_metrics
        if context.responses is not None:
            context.meter.stored_sizes = context.responses.sizes
        self._engine = engine
        self._gate = context.gate
        self._meter = context.meter
        self._has_begun = threading.Event()
        self._has_ended = False
        self._may_end = False
        self._failure: BaseException | None = None
        set_http_level(service.config.serve.uvicorn_log_level)
        self._server = _Server(
            _uvicorn_config(context, service.keys),
            self._gate,
            self._has_begun,
            service.config.listen,
        )
        self._listener = listener
        self._loop = uvloop.new_event_loop()
        threading.Thread(target=self._run, name="http", daemon=True).start()
        self._has_begun.wait()
        self.check()

    @property
    def is_running(self) -> bool:
        """Whether it still answers, or ends; a thread that works for nobody is not waited for."""
        return not self._has_ended

    @property
    def code(self) -> int:
        """0 if all that came was answered."""
        return int(self._gate.is_cut or self._failure is not None)

    def check(self) -> None:
        """Raise if it has ended by itself."""
        if self._failure is not None:
            raise OctavoError(f"the HTTP server has failed: {one_line(self._failure)}")

    def engine_ended(self, cause: str, *, is_last: bool) -> None:
        """Fail what is in flight and refuse what comes."""
        self._gate.closed = ENGINE_ENDED if is_last else ENGINE_RESTARTS
        self._engine.kill(cause)

    def engine_started(self) -> None:
        """Let requests in again."""
        self._gate.closed = None

    def drain(self) -> None:
        """Refuse what comes, and end when all that is in flight has been answered."""
        self._may_end = True
        if self._gate.closed is not ENGINE_ENDED:
            self._gate.closed = DRAINING
            num_inside = self._gate.num_inside
            what_is_left = f": {counted(num_inside, 'request')} in flight" if num_inside else ""
            log.info("shutting down%s", what_is_left)
        self._server.is_draining = True

    def cut(self) -> None:
        """End at once: connections are closed whatever goes on."""
        self._may_end = True
        with suppress(RuntimeError):  # the event loop is closed: it has ended meanwhile
            self._loop.call_soon_threadsafe(self._cut)

    def _run(self) -> None:
        _calm_collector()
        sys.setswitchinterval(SWITCH_SECONDS)
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        watching = asyncio.create_task(self._meter.watch())
        LoopWatch(self._loop, self._engine.host, "the server's event loop")
        try:
            await self._server.serve(sockets=[self._listener])
            if not self._may_end:
                raise OctavoError("it has ended without being asked to")
        except BaseException as error:  # uvicorn exits, and an event loop that stops cancels
            log.exception("the HTTP server has failed")
            self._failure = error
        finally:
            watching.cancel()
            self._has_ended = True
            self._has_begun.set()

    def _cut(self) -> None:
        if num_inside := self._gate.num_inside:
            log.warning("cut off: %s", counted(num_inside, "request"))
            self._gate.is_cut = True
        self._server.should_exit = True
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()  # its requests end as if their client had left


def _calm_collector() -> None:
    """Keep garbage collections from stopping all streams.

    One that looks at all that was imported takes 0.2 s, so that is left out. What streams are made
    of lives for a moment: seldom collections find little of it, which saves a tenth of all work.
    """
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)


class _Server(uvicorn.Server):
    is_draining = False

    def __init__(
        self,
        config: uvicorn.Config,
        gate: Gate,
        has_begun: threading.Event,
        listen: ListenConfig,
    ) -> None:
        super().__init__(config)
        self._gate = gate
        self._has_begun = has_begun
        self._listen = listen
        self._certificates: CertificateWatch | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        await super().startup(sockets)
        if self._listen.enable_ssl_refresh and self.config.ssl is not None:
            self._certificates = CertificateWatch(self.config.ssl, self._listen)
        self._has_begun.set()

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second; True ends it."""
        if self._certificates is not None and counter % TICKS == 0:
            self._certificates.look()
        self.should_exit |= self.is_draining and self._gate.num_inside == 0
        return await super().on_tick(counter)


def _uvicorn_config(context: ServerContext, keys: Keys) -> uvicorn.Config:
    listen, limits, serve = context.config.listen, context.config.limits, context.config.serve
    app = make_app(context, keys)
    meter = context.meter.http
    assert meter is not None  # the app counts, too

    def refused(what: Refusal) -> None:
        route, status = route_of(what.path, listen.root_path), what.error.status
        meter.answered(what.method, route, status, what.seconds)
        if serve.access_log and route not in serve.access_log_skip:
            log_access(what.method, what.path, status, what.seconds, what.request_id)

    return uvicorn.Config(
        app,
        http=limited_protocol(limits, refused),
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
        ssl_cert_reqs=listen.client_certificates,
        ssl_ciphers=listen.ssl_ciphers or "TLSv1",  # uvicorn's own default
    )
