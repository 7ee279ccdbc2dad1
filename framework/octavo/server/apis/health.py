"""/, /health, /ping, /load, /version."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import msgspec

from octavo.server.context import ServerContext
from octavo.server.http.boundary import ENGINE_ENDED
from octavo.server.http.errors import HttpError
from octavo.server.http.exchange import Exchange, Reply, encode
from octavo.server.http.openapi import operation
from octavo_registry.routes import Endpoint


class Health(msgspec.Struct, omit_defaults=True):
    """The server answers, and the engine advances."""

    status: str
    plugins: list[dict[str, Any]] = []
    """With ?verbose=1."""


class Load(msgspec.Struct):
    """Requests inside the server, in all states."""

    server_load: int


class Version(msgspec.Struct):
    """Octavo's version."""

    version: str


class HealthRoutes:
    """Tells how the server is."""

    def __init__(self, server: ServerContext) -> None:
        self._server = server

    def endpoints(self) -> Sequence[Endpoint]:
        """Return what probes and balancers ask."""
        return [
            self._get("/health", self._health, "Tell whether the engine advances", Health, True),
            self._get("/ping", self._health, "The same, for other balancers", Health, True),
            self._ping_by_post(),
            self._get("/load", self._load, "Count the requests inside", Load, False),
            self._root(),
            self._get("/version", self._version, "Show Octavo's version", Version, False),
        ]

    def _get(self, path: str, handler: Any, summary: str, reply: type, is_open: bool) -> Endpoint:
        described = operation(summary, reply=reply)
        return self._server.endpoint("GET", path, handler, described, authenticated=not is_open)

    def _root(self) -> Endpoint:
        described = operation(
            "Say where the routes are described", reply=str, content_type="text/plain"
        )
        return self._server.endpoint("GET", "/", self._where, described)

    def _ping_by_post(self) -> Endpoint:
        described = operation("The same, for SageMaker", reply=Health)
        return self._server.endpoint(
            "POST", "/ping", self._health, described, authenticated=False, read=None
        )

    async def _health(self, exchange: Exchange) -> Reply:
        server = self._server
        if not server.engine.alive:
            raise ENGINE_ENDED.error()
        stalled = server.engine.seconds_without_progress
        if stalled > server.config.limits.hang_seconds:
            raise HttpError(
                503, f"the engine has made no step for {stalled:.0f} s", code="engine_hangs"
            )
        if server.gate.closed is not None:
            raise server.gate.closed.error()
        if b"verbose=1" not in exchange.scope["query_string"].split(b"&"):
            return Reply(encode(Health("ok")))
        return Reply(encode(Health("ok", plugins=self._plugins())))

    def _plugins(self) -> list[dict[str, Any]]:
        host = self._server.host
        failures: dict[str, int] = {}
        for (plugin, _), count in host.faults.counts.items():
            failures[plugin] = failures.get(plugin, 0) + count
        return [
            {
                "name": plugin.name,
                "failures": failures.get(plugin.name, 0),
                "quarantined_seconds": host.faults.quarantined.get(plugin.name),
            }
            for plugin in host.plugins
        ]

    async def _where(self, exchange: Exchange) -> Reply:
        """Clients ask HEAD / to see whether anybody listens."""
        return Reply(b"Octavo: /docs shows all routes\n", content_type=b"text/plain")

    async def _load(self, exchange: Exchange) -> Reply:
        return Reply(encode(Load(self._server.gate.num_inside - 1)))  # without this one

    async def _version(self, exchange: Exchange) -> Reply:
        return Reply(encode(Version(version("octavo"))))
