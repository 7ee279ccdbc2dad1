"""HTTP/1.1 on the wire: uvicorn's parser, with limits that hold before a request is known."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from octavo.config.server import LimitConfig
from octavo.server.errors import ErrorReply


def limited_protocol(limits: LimitConfig) -> type[HttpToolsProtocol]:
    """Return the protocol class for these limits; uvicorn makes one of it a connection."""
    max_header_bytes = int(limits.max_header_kib * 1024)

    class LimitedProtocol(HttpToolsProtocol):
        """Ends a connection whose headers are too long or too slow, in OpenAI's error shape."""

        _num_header_bytes = 0
        _too_slow: asyncio.TimerHandle | None = None
        """Runs out while headers are awaited."""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._await_headers()

        def connection_lost(self, exc: Exception | None) -> None:
            self._have_headers()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            """Counts what arrives before a request is whole: the parser keeps all of it."""
            super().data_received(data)
            if self._too_slow is None or self.transport.is_closing():
                return
            self._num_header_bytes += len(data)
            if self._num_header_bytes > max_header_bytes:
                self.send_400_response(f"the headers are longer than {max_header_bytes} bytes")

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._await_headers()

        def on_headers_complete(self) -> None:
            self._have_headers()
            super().on_headers_complete()

        def send_400_response(self, msg: str) -> None:
            """Uvicorn's own is plain text."""
            body = ErrorReply(400, msg).json()
            self.transport.write(
                b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
                b"connection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
            )
            self.transport.close()

        def _await_headers(self) -> None:
            self._have_headers()
            self._too_slow = self.loop.call_later(limits.body_timeout_seconds, self._close_slow)

        def _have_headers(self) -> None:
            self._num_header_bytes = 0
            if self._too_slow is not None:
                self._too_slow.cancel()
                self._too_slow = None

        def _close_slow(self) -> None:
            if not self.transport.is_closing():
                self.transport.close()

    return LimitedProtocol
