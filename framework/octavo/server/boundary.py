"""What every request passes before it reaches a route: a name, limits, keys, the gate."""

from __future__ import annotations

import hmac
import logging
import re
import time
import uuid
from collections.abc import Collection, MutableMapping
from dataclasses import dataclass
from typing import Any, Final

from octavo.config.server import AccessConfig, LimitConfig, ServeConfig
from octavo.server.body import Receive
from octavo.server.cors import cors_headers, is_preflight, preflight_headers
from octavo.server.errors import HttpError, reply_to
from octavo.server.exchange import Send, send_error, send_whole

access_log = logging.getLogger("octavo.access")

CLIENT_LEFT: Final = 499
"""What the log shows for a request whose client did not wait for an answer."""
_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9_.:-]{1,128}")
Scope = MutableMapping[str, Any]


@dataclass(slots=True)
class Gate:
    """Whether requests are let in, and how many are inside."""

    num_inside: int = 0
    closed_because: str | None = None
    """Set when the server drains or has no engine: what new requests are told."""


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
        keys: Collection[str],
        open_paths: Collection[str],
    ) -> None:
        """``open_paths`` answer without a key and while the gate is closed."""
        self._routes = routes
        self._gate = gate
        self._access = access
        self._limits = limits
        self._serve = serve
        self._keys = [key.encode() for key in keys]
        self._open_paths = frozenset(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer with OpenAI's error object."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                return  # closing without accepting: there is none here
            await self._routes(scope, receive, send)
            return
        began = time.perf_counter()
        scope["octavo.request_id"] = request_id = _request_id(scope)
        shared = cors_headers(dict(scope["headers"]), self._access)
        status = 0

        async def send_named(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [
                    *message.get("headers", ()),
                    (b"x-request-id", request_id.encode()),
                    *shared,
                ]
            await send(message)

        self._gate.num_inside += 1
        try:
            if shared and is_preflight(scope):
                await send_whole(send_named, 200, b"", preflight_headers(self._access))
                return
            self._check(scope)
            await self._routes(scope, receive, send_named)
        except HttpError as error:
            await send_error(send_named, reply_to(error, scope["path"]))
        finally:
            self._gate.num_inside -= 1
            self._log(scope, status or CLIENT_LEFT, time.perf_counter() - began)

    def _check(self, scope: Scope) -> None:
        headers = scope["headers"]
        if len(headers) > self._limits.max_header_count:
            raise HttpError(400, f"{len(headers)} headers; at most {self._limits.max_header_count}")
        num_bytes = sum(len(name) + len(value) for name, value in headers)
        if num_bytes > self._limits.max_header_kib * 1024:
            raise HttpError(400, f"headers of {num_bytes} bytes are too long")
        if scope["path"] in self._open_paths:
            return
        if self._keys and not self._has_key(dict(headers)):
            raise HttpError(
                401, "a valid API key is needed: Authorization: Bearer KEY", code="invalid_api_key"
            )
        if self._gate.closed_because is not None:
            raise HttpError(503, self._gate.closed_because, retry_after=5)

    def _has_key(self, headers: dict[bytes, bytes]) -> bool:
        """OpenAI's header or Anthropic's; each key is compared, and each in constant time."""
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer":
            given = headers.get(b"x-api-key", b"")
        given = given.strip()
        return sum(hmac.compare_digest(given, key) for key in self._keys) > 0

    def _log(self, scope: Scope, status: int, seconds: float) -> None:
        if not self._serve.access_log or scope["path"] in self._serve.access_log_skip:
            return
        access_log.info(
            "%s %s %d %.1f ms %s",
            scope["method"],
            printable(scope["path"]),
            status,
            seconds * 1e3,
            scope["octavo.request_id"],
        )


def printable(text: str, most: int = 256) -> str:
    """Text that cannot break a line of a log or color a terminal."""
    return "".join(c if c.isprintable() else "?" for c in text[:most])


def _request_id(scope: Scope) -> str:
    """The client's own name for the request if it is a plain one, else a new one."""
    given = dict(scope["headers"]).get(b"x-request-id", b"")
    return given.decode() if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
