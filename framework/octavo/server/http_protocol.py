"""HTTP/1.1 on the wire: uvicorn's parser, with limits that hold before a request is known."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import replace
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from octavo.config.server import LimitConfig
from octavo.server.errors import RETRY_AFTER_SECONDS, ErrorReply

REASONS: Final = {400: b"Bad Request", 408: b"Request Timeout", 503: b"Service Unavailable"}
FRAMING_BYTES_PER_BODY_BYTE: Final = 8
"""A body in chunks of one byte has five bytes of framing for each."""
UNADMITTED_SECONDS: Final = 2.0
"""How long a connection above the limit has to send the request that is refused."""
LEAVE_SECONDS: Final = 0.5
"""After its client has left, how long an app may take to notice by itself."""
TASK: Final = "octavo.task"
"""Where a request's scope holds the task that answers it."""


def limited_protocol(limits: LimitConfig) -> type[HttpToolsProtocol]:
    """Return the protocol class for these limits; uvicorn makes one of it a connection."""
    max_header_bytes = int(limits.max_header_kib * 1024)

    class LimitedProtocol(HttpToolsProtocol):
        """Ends connections that bring too much or are too slow, in OpenAI's error shape."""

        _num_free_bytes = max_header_bytes
        """That may still come and be neither a body's nor of headers that are complete."""
        _too_slow: asyncio.TimerHandle | None = None
        """Runs out while headers are awaited."""
        _unread: asyncio.TimerHandle | None = None
        """Runs out while the client does not read what is sent."""
        _is_admitted = True

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._cycles: deque[Any] = deque()
            """Requests that are answered or wait for that, the oldest first."""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._is_admitted = len(self.connections) <= limits.max_connections
            self._await_headers()

        def connection_lost(self, exc: Exception | None) -> None:
            self._have_headers()
            self.resume_writing()
            super().connection_lost(exc)
            for cycle in self._cycles:  # uvicorn tells the newest alone, and it may not have begun
                if not cycle.response_complete:
                    cycle.disconnected = True
                    cycle.message_event.set()
                    self.loop.call_later(LEAVE_SECONDS, _cancel, cycle.scope)

        def data_received(self, data: bytes) -> None:
            """Counts all that arrives: the parser keeps headers, and passes over what is none."""
            self._num_free_bytes -= len(data)
            super().data_received(data)
            if self._num_free_bytes < 0:
                self._refuse(400, f"the headers are longer than {max_header_bytes} bytes")

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._await_headers()

        def on_headers_complete(self) -> None:
            self._have_headers()
            if not self._is_admitted:
                self._refuse(503, f"max_connections={limits.max_connections} are in use")
                return
            super().on_headers_complete()
            while self._cycles and self._cycles[0].response_complete:
                self._cycles.popleft()
            self._cycles.append(self.cycle)

        def on_header(self, name: bytes, value: bytes) -> None:
            """Trailers come here too, and nobody wants them."""
            if self._too_slow is not None:
                super().on_header(name, value)

        def on_body(self, body: bytes) -> None:
            earned = self._num_free_bytes + len(body) * FRAMING_BYTES_PER_BODY_BYTE
            self._num_free_bytes = min(earned, max_header_bytes)
            if self._is_admitted:
                super().on_body(body)

        def on_message_complete(self) -> None:
            self._num_free_bytes = max_header_bytes
            if self._is_admitted:
                super().on_message_complete()

        def pause_writing(self) -> None:
            super().pause_writing()
            if self._unread is None:
                self._unread = self.loop.call_later(limits.send_timeout_seconds, self._abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            if self._unread is not None:
                self._unread.cancel()
                self._unread = None

        def timeout_keep_alive_handler(self) -> None:
            """Also ends a client that has not read its last answer."""
            self._abort()

        def send_400_response(self, msg: str) -> None:
            """Uvicorn's own is plain text."""
            self._refuse(400, msg)

        def _refuse(self, status: int, message: str) -> None:
            if self.transport.is_closing():
                return
            reply = ErrorReply(status, message)
            if status == 503:
                reply = replace(reply, code="overloaded", retry_after=RETRY_AFTER_SECONDS)
            body = reply.json()
            if self.cycle is None or self.cycle.response_complete:
                headers = [
                    (b"content-type", b"application/json"),
                    (b"connection", b"close"),
                    (b"content-length", b"%d" % len(body)),
                    *reply.headers(),
                ]
                lines = b"".join(b"%b: %b\r\n" % header for header in headers)
                self.transport.write(
                    b"HTTP/1.1 %d %b\r\n%b\r\n%b" % (status, REASONS[status], lines, body)
                )
            self.transport.close()

        def _await_headers(self) -> None:
            self._have_headers()
            seconds = limits.body_timeout_seconds if self._is_admitted else UNADMITTED_SECONDS
            self._too_slow = self.loop.call_later(seconds, self._close_slow)

        def _have_headers(self) -> None:
            self._num_free_bytes = max_header_bytes
            if self._too_slow is not None:
                self._too_slow.cancel()
                self._too_slow = None

        def _close_slow(self) -> None:
            self._refuse(408, "the headers did not arrive in time")

        def _abort(self) -> None:
            self.transport.abort()

    return LimitedProtocol


def _cancel(scope: Any) -> None:
    task: asyncio.Task[None] | None = scope.get(TASK)
    if task is not None:
        task.cancel()
