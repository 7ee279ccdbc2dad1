"""HTTP/1.1 on the wire: uvicorn's parser, with limits that hold before a request is known.

What does not parse ends its connection, but takes no answer from the requests before it: those are
answered first. Where a request's headers were read, the answer to it says what is wrong.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from octavo.config.server import LimitConfig
from octavo.server.http.errors import RETRY_AFTER_SECONDS, HttpError, reply_to
from octavo.server.http.head import fault_of, head, target_of
from octavo.server.http.reading import (
    CHUNKED_PIECE_BYTES,
    Reading,
    WaitingBytes,
    end_of_headers,
)

FRAMING_BYTES_PER_BODY_BYTE: Final = 8
"""A body in chunks of one byte has five bytes of framing for each."""
UNADMITTED_SECONDS: Final = 2.0
"""How long a connection above the limit has to send the request that is refused."""
LEAVE_SECONDS: Final = 0.5
"""After its client has left, how long an app may take to notice by itself."""
LINGER_SECONDS: Final = 2.0
"""How long a client may go on sending what nobody reads, so that it reads its answer meanwhile."""
MAX_LINGERING: Final = 128
"""Connections at a time that wait for that; the one that has waited longest makes room."""
TASK: Final = "octavo.task"
"""Where a request's scope holds the task that answers it."""
BROKEN: Final = "octavo.broken"
"""Where a request's scope holds the error of a body that cannot be read to its end."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that no app gives, to what is no request or must not become one."""

    error: HttpError
    method: str
    """Empty where it was not read."""
    path: str
    seconds: float
    """Since the request was awaited."""
    request_id: str

    def answer(self) -> bytes:
        """What the client is sent; the connection ends behind it."""
        reply = reply_to(self.error, self.path)
        body = reply.json()
        request_id = self.request_id.encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
            (b"x-request-id", request_id),
            (b"request-id", request_id),
            *reply.headers(),
        ]
        phrase = HTTPStatus(reply.status).phrase.encode()
        return head(b"HTTP/1.1 %d %b" % (reply.status, phrase), headers) + body


def limited_protocol(
    limits: LimitConfig, refused: Callable[[Refusal], None]
) -> type[HttpToolsProtocol]:
    """Return the protocol class for these limits; uvicorn makes one of it a connection.

    ``refused`` is told of each answer that no app has given.
    """
    max_header_bytes = int(limits.max_header_kib * 1024)
    lingering: dict[LimitedProtocol, None] = {}
    """Connections that have had their last answer, the oldest first."""
    waiting = WaitingBytes()

    class LimitedProtocol(HttpToolsProtocol, asyncio.BufferedProtocol):
        """Ends connections that bring too much or are too slow, in the path's error shape."""

        flow: Reading
        url = b""
        _ahead = memoryview(b"")
        """What has come and is not parsed, as a request waits for the one before it."""
        _num_waiting_bytes = 0
        """That keep it in memory."""
        _num_body_bytes = 0
        """That are still to come of a body whose length is known."""
        _num_free_bytes = max_header_bytes
        """That may still come and be neither a body's nor of headers that are complete."""
        _num_trailer_bytes = 0
        _is_in_body = False
        """Whether a request's headers have come and its body has not ended."""
        _is_over = False
        """What arrives is not read any more."""
        _num_unread_bytes = 0
        """That have arrived since."""
        _refusal: Refusal | None = None
        """Told when all requests have been answered."""
        _awaited_since = 0.0
        _too_slow: asyncio.TimerHandle | None = None
        """Runs out while headers are awaited, or what need not come any more."""
        _unread: asyncio.TimerHandle | None = None
        """Runs out while the client does not read what is sent."""
        _is_admitted = True

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._cycles: deque[Any] = deque()
            """Requests that are answered or wait for that, the oldest first."""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.flow = Reading(transport, self._may_read, transport.close)
            self._end_of_requests = _EndOfRequests(transport, self._answered_last)
            self._is_admitted = len(self.connections) <= limits.max_connections
            self._await_headers()

        def connection_lost(self, exc: Exception | None) -> None:
            lingering.pop(self, None)
            self._wait_with(memoryview(b""))
            self._stop_waiting()
            self.flow.stop_looking()
            self.resume_writing()
            super().connection_lost(exc)
            self._disconnect()  # uvicorn tells the newest alone, and it may not have begun

        def get_buffer(self, sizehint: int) -> memoryview:
            return waiting.buffer()

        def buffer_updated(self, nbytes: int) -> None:
            self.data_received(waiting.read(nbytes))

        def data_received(self, data: bytes) -> None:
            """Counts all that arrives: the parser keeps headers, and passes over what is none."""
            self._unset_keepalive_if_required()
            if self._is_over:
                self._num_unread_bytes += len(data)
                if self in lingering and self._num_unread_bytes > limits.max_body_mib * 2**20:
                    self._stop_lingering()
                return
            self._ahead = memoryview(bytes(self._ahead) + data if self._ahead else data)
            self._parse_ahead()
            is_idle = self.cycle is None or self.cycle.response_complete
            if is_idle and self._too_slow is None:  # blank lines, or a body that nobody waits for
                self._too_slow = self.loop.call_later(self.timeout_keep_alive, self._abort)

        def _may_read(self) -> bool:
            return self._is_over or not self.pipeline

        def _parse_ahead(self) -> None:
            """Parse until a request waits: the rest is kept as bytes, however many it holds."""
            while self._ahead and not self.pipeline and not self._is_over:
                size = CHUNKED_PIECE_BYTES if self._is_in_body else end_of_headers(self._ahead)
                size = self._num_body_bytes or size
                piece, self._ahead = self._ahead[:size], self._ahead[size:]
                self._num_free_bytes -= len(piece)
                self._parse(piece)
                if self._num_free_bytes < 0:
                    message = f"the headers are longer than {max_header_bytes} bytes"
                    self._refuse(400, message, piece)
            self._wait_with(self._ahead)

        def _wait_with(self, ahead: memoryview) -> None:
            """Keep what is not parsed yet; a part of what was read at once keeps all of it."""
            self._ahead = ahead if ahead and not self._is_over else memoryview(b"")
            num_bytes = len(self._ahead.obj)  # type: ignore[arg-type]  # bytes
            waiting.num_bytes += num_bytes - self._num_waiting_bytes
            self._num_waiting_bytes = num_bytes

        def _parse(self, data: bytes | memoryview) -> None:
            while not self._is_over:
                try:
                    self.parser.feed_data(data)
                    return
                except httptools.HttpParserUpgrade as upgrade:
                    data = self._head_without_upgrade() + data[upgrade.args[0] :]
                except httptools.HttpParserCallbackError:
                    self._refuse(400, "the path is too long, or is none", data)
                    return
                except httptools.HttpParserError as error:
                    self._refuse(400, f"this is no request of HTTP/1.1: {error}", data)
                    return

        def _head_without_upgrade(self) -> bytes:
            """What asks for another protocol, as it is parsed anew: the parser skips its body.

            Java's client asks so for HTTP/2 with each first request, which may be answered.
            """
            method, version = self.parser.get_method(), self.parser.get_http_version().encode()
            headers = [(name, value) for name, value in self.headers if name != b"upgrade"]
            return head(b"%b %b HTTP/%b" % (method, self.url, version), headers)

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._await_headers()

        def on_headers_complete(self) -> None:
            self._num_free_bytes = max_header_bytes
            self._stop_waiting()
            if self._is_over:
                return
            if self.parser.get_method() == b"CONNECT":
                self._refuse(400, "this server is no proxy")
                return
            fault = fault_of(self.parser.get_http_version(), self.headers)
            if fault is not None:
                self._refuse(400, fault)
                return
            if self.parser.should_upgrade():
                return
            if not self._is_admitted:
                self._refuse(503, f"max_connections={limits.max_connections} are in use")
                return
            super().on_headers_complete()
            self.cycle.transport = self._end_of_requests  # type: ignore[assignment]
            self._is_in_body = True
            length = next((value for name, value in self.headers if name == b"content-length"), 0)
            self._num_body_bytes = int(length)
            self._num_trailer_bytes = 0
            while self._cycles and self._cycles[0].response_complete:
                self._cycles.popleft()
            self._cycles.append(self.cycle)

        def on_header(self, name: bytes, value: bytes) -> None:
            """Trailers come here too, and nobody wants them."""
            if self._is_over:
                return
            if not self._is_in_body:
                super().on_header(name, value)
                if len(self.headers) > limits.max_header_count:
                    self._refuse(400, f"more than {limits.max_header_count} headers")
                return
            self._num_trailer_bytes += len(name) + len(value) + len(": \r\n")
            if self._num_trailer_bytes > max_header_bytes:
                self._refuse(400, f"the trailers are longer than {max_header_bytes} bytes")

        def on_body(self, body: bytes) -> None:
            earned = self._num_free_bytes + len(body) * FRAMING_BYTES_PER_BODY_BYTE
            self._num_free_bytes = min(earned, max_header_bytes)
            self._num_body_bytes = max(0, self._num_body_bytes - len(body))
            if self._is_in_body:
                super().on_body(body)

        def on_message_complete(self) -> None:
            self._num_free_bytes = max_header_bytes
            self._stop_waiting()
            if self._is_in_body:
                self._is_in_body = False
                super().on_message_complete()

        def on_response_complete(self) -> None:
            if self in lingering:
                return
            super().on_response_complete()
            self._parse_ahead()
            self.flow.resume_reading()
            if self.cycle.response_complete and self._is_over:
                self._end()

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

        def _refuse(self, status: int, message: str, data: bytes | memoryview = b"") -> None:
            """End the connection behind its last answer, which says this; ``data`` is at fault."""
            if self.transport.is_closing() or self._is_over:
                return
            self._is_over = True
            is_full = status == 503
            error = HttpError(
                status,
                message,
                code="overloaded" if is_full else None,
                retry_after=RETRY_AFTER_SECONDS if is_full else None,
            )
            if self._is_in_body:
                self._cycles[-1].scope[BROKEN] = error
                self.cycle.keep_alive = False
                self.cycle.message_event.set()
            else:
                method = self.parser.get_method() if self.url else b""
                target = (self.url or target_of(data)).decode("latin-1")
                self._refusal = Refusal(
                    error,
                    method.decode(),
                    target.partition("?")[0],
                    self.loop.time() - self._awaited_since,
                    uuid.uuid4().hex,
                )
            if self.cycle is None or self.cycle.response_complete:
                self._end()

        def _answered_last(self) -> None:
            """A request's answer says that the connection closes, or has failed."""
            has_all = not self._is_in_body and not self._is_over
            if has_all and not self.transport.can_write_eof():
                self.transport.close()  # its client could not tell that the answer has ended
                return
            self._is_over, self._refusal = True, None
            self._end()

        def _end(self) -> None:
            """Close, but not before a client that still sends has had time to read."""
            if self.transport.is_closing() or self in lingering:
                return
            if self._refusal is not None:
                self.transport.write(self._refusal.answer())
                refused(self._refusal)
            if not self._is_admitted:
                self.transport.close()
                return
            self._disconnect()
            self._stop_waiting()
            self._unset_keepalive_if_required()
            self.flow.resume_reading()
            if self.transport.can_write_eof():  # not with TLS: the answer says where it ends
                self.transport.write_eof()
            if len(lingering) == MAX_LINGERING:
                next(iter(lingering))._stop_lingering()
            lingering[self] = None
            self._too_slow = self.loop.call_later(LINGER_SECONDS, self._stop_lingering)

        def _stop_lingering(self) -> None:
            """Close; an answer that is long may still be on its way."""
            lingering.pop(self, None)
            self._stop_waiting()
            self._too_slow = self.loop.call_later(limits.send_timeout_seconds, self._abort)
            self.transport.close()

        def _disconnect(self) -> None:
            """Tell requests that wait for their answers' turn, or give one, that nobody reads."""
            for cycle in self._cycles:
                if not cycle.response_complete:
                    cycle.disconnected = True
                    cycle.message_event.set()
                    self.loop.call_later(LEAVE_SECONDS, _cancel, cycle.scope)

        def _await_headers(self) -> None:
            self._stop_waiting()
            self._awaited_since = self.loop.time()
            seconds = limits.body_timeout_seconds if self._is_admitted else UNADMITTED_SECONDS
            self._too_slow = self.loop.call_later(seconds, self._close_slow)

        def _stop_waiting(self) -> None:
            if self._too_slow is not None:
                self._too_slow.cancel()
                self._too_slow = None

        def _close_slow(self) -> None:
            self._refuse(408, "the headers did not arrive in time")

        def _abort(self) -> None:
            self.transport.abort()

    return LimitedProtocol


class _EndOfRequests:
    """A connection as requests have it: they end it by the way that this is made with."""

    __slots__ = ("close", "is_closing", "write")

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.close = close


def _cancel(scope: Any) -> None:
    task: asyncio.Task[None] | None = scope.get(TASK)
    if task is not None:
        task.cancel()
