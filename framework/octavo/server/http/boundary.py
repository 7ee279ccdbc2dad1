"""What every request passes before it reaches a route: a name, limits, keys, the gate."""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Callable, Collection, MutableMapping
from dataclasses import dataclass
from typing import Any, Final

from octavo.config.server import AccessConfig, LimitConfig, ServeConfig
from octavo.server.http.body import Receive
from octavo.server.http.cors import cors_headers, is_preflight, preflight_headers
from octavo.server.http.errors import DEAD_RETRY_SECONDS, HttpError, reply_to
from octavo.server.http.exchange import FAILED, KEY, Send, send_error, send_whole
from octavo.server.http.keys import Keys
from octavo.server.http.protocol import BROKEN, TASK
from octavo.server.http.sites import SiteGuard

access_log = logging.getLogger("octavo.access")

CLIENT_LEFT: Final = 499
"""What the log shows for a request whose client did not wait for the answer's end."""
CUT_OFF: Final = 503
"""And for one that the server did not answer to the end, since its own had come."""
METRICS_PATH: Final = "/metrics"
"""It answers to the end, so that what the last requests were is seen."""
IS_OPERATOR: Final = "octavo.is_operator"
"""Where a request's scope says whether its key is enough for what only the operator may ask."""
ROUTE: Final = "octavo.route"
"""Where an endpoint leaves its path in the scope, for metrics."""
_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9_.:-]{1,128}")
Scope = MutableMapping[str, Any]


@dataclass(frozen=True, slots=True)
class Closed:
    """Why nothing is let in, as new requests are told."""

    message: str
    code: str

    def error(self) -> HttpError:
        """The answer to a request."""
        return HttpError(503, self.message, code=self.code, retry_after=DEAD_RETRY_SECONDS)


DRAINING: Final = Closed("the server is shutting down", "draining")
ENGINE_ENDED: Final = Closed("the engine has ended", "engine_dead")
ENGINE_RESTARTS: Final = Closed("the engine has ended, and another one starts", "engine_dead")


@dataclass(slots=True)
class Gate:
    """Whether requests are let in, and how many are inside."""

    num_inside: int = 0
    num_body_bytes: int = 0
    """Bytes of all bodies that have come and whose answers have not begun."""
    closed: Closed | None = None
    """Set when the server drains or has no engine."""
    is_cut: bool = False
    """Set when what is inside is ended, answered or not."""


class Boundary:
    """An ASGI app around the routes."""

    def __init__(
        self,
        routes: Any,
        gate: Gate,
        *,
        access: AccessConfig,
        limits: LimitConfig,
        serve: ServeConfig,
        keys: Keys,
        sites: SiteGuard,
        open_endpoints: Collection[tuple[str, str]],
        answered: Callable[[str, str, int, float], None],
        root_path: str = "",
    ) -> None:
        """``open_endpoints``, methods and paths, answer without a key and through a closed gate.

        ``answered`` is told each request's method, route, status and seconds.
        """
        self._routes = routes
        self._gate = gate
        self._access = access
        self._limits = limits
        self._serve = serve
        self._keys = keys
        self._sites = sites
        self._open_endpoints = frozenset(open_endpoints)
        self._answered = answered
        self._root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer with OpenAI's error object."""
        began = time.perf_counter()
        scope[TASK] = asyncio.current_task()
        headers = dict(scope["headers"])
        scope["octavo.request_id"] = request_id = _request_id(headers)
        shared = cors_headers(headers, self._access)
        may_preflight = bool(shared)
        if self._gate.closed is not None:
            shared.append((b"connection", b"close"))
        status = num_bytes = 0
        is_whole = False

        async def send_named(message: MutableMapping[str, Any]) -> None:
            nonlocal status, num_bytes, is_whole
            if message["type"] == "http.response.start":
                self._gate.num_body_bytes -= num_bytes
                num_bytes = 0
                message["headers"] = [
                    *message.get("headers", ()),
                    (b"x-request-id", request_id.encode()),
                    (b"request-id", request_id.encode()),  # where Anthropic's clients look
                    *shared,
                ]
                await send(message)
                status = message["status"]
            else:
                await send(message)
                is_whole = not message.get("more_body")

        async def receive_counted() -> MutableMapping[str, Any]:
            nonlocal num_bytes
            message = await receive()
            if not status and BROKEN in scope:
                raise scope[BROKEN]
            if not status and (body := message.get("body")):
                num_bytes += len(body)
                self._gate.num_body_bytes += len(body)
                if self._gate.num_body_bytes > self._limits.max_total_body_mib * 2**20:
                    raise HttpError(
                        503, "too many long bodies at once", code="overloaded", retry_after=1
                    )
            return message

        self._gate.num_inside += 1
        try:
            self._sites.check(headers)
            if may_preflight and is_preflight(scope):
                await send_whole(send_named, 200, b"", preflight_headers(scope, self._access))
                return
            self._check(scope, headers)
            await self._routes(scope, receive_counted, send_named)
        except asyncio.CancelledError:
            return  # the client has left an app that did not notice, or the process ends
        except Exception as error:
            if status:
                scope[FAILED] = error.status if isinstance(error, HttpError) else 500
                raise
            await send_error(send_named, reply_to(error, scope["path"]))
        finally:
            self._gate.num_body_bytes -= num_bytes
            self._gate.num_inside -= 1
            seconds = time.perf_counter() - began
            if not is_whole:
                status = CUT_OFF if self._gate.is_cut else CLIENT_LEFT
            status = scope.get(FAILED, status)
            route = scope.get(ROUTE) or self._route(scope)
            self._answered(scope["method"], route, status, seconds)
            self._log(scope, status, seconds)

    def _check(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        # Of a GET, routes also answer HEAD.
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        if (method, self._route(scope)) in self._open_endpoints:
            return
        given = given_key(headers)
        if not self._keys.open(given):
            raise HttpError(
                401, "a valid API key is needed: Authorization: Bearer KEY", code="invalid_api_key"
            )
        scope[IS_OPERATOR] = self._keys.open_all(given)
        if self._keys.users:
            scope[KEY] = given
        if self._gate.closed is not None and self._route(scope) != METRICS_PATH:
            raise self._gate.closed.error()

    def _route(self, scope: Scope) -> str:
        return route_of(scope["path"], self._root_path)

    def _log(self, scope: Scope, status: int, seconds: float) -> None:
        if self._serve.access_log and self._route(scope) not in self._serve.access_log_skip:
            log_access(scope["method"], scope["path"], status, seconds, scope["octavo.request_id"])


def given_key(headers: dict[bytes, bytes]) -> bytes:
    """The key in OpenAI's header or Anthropic's; empty where there is none."""
    scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() != b"bearer":
        given = headers.get(b"x-api-key", b"")
    return given.strip()


def route_of(path: str, root_path: str) -> str:
    """The path as routes name it, whether or not a proxy has taken the prefix off."""
    below = path.removeprefix(root_path)
    return below if below.startswith("/") else path


def log_access(method: str, path: str, status: int, seconds: float, request_id: str) -> None:
    """Write a request's end to the access log."""
    access_log.info(
        "%s %s %d %.1f ms %s",
        method or "-",
        printable(path) or "-",
        status,
        seconds * 1e3,
        request_id,
    )


def printable(text: str, most: int = 256) -> str:
    """Text that cannot break a line of a log or color a terminal."""
    return "".join(c if c.isprintable() else "?" for c in text[:most])


def _request_id(headers: dict[bytes, bytes]) -> str:
    """The client's own name for the request if it is a plain one, else a new one."""
    given = headers.get(b"x-request-id", b"")
    return given.decode() if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
