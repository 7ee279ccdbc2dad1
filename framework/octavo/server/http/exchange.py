"""One request and its answer, in terms of ASGI: JSON in, JSON or a stream of events out."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Mapping,
    MutableMapping,
)
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec

from octavo.config.server import LimitConfig
from octavo.server.http.body import ClientLeft, Receive, read_json
from octavo.server.http.errors import ErrorReply, reply_to
from octavo.server.protocol.notes import NoteLog, Notes

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

JSON: Final = (b"content-type", b"application/json")
EVENTS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # a proxy must not collect events
)
DONE: Final = b"data: [DONE]\n\n"
ANSWERED_AS: Final = "octavo.answered_as"
"""Where an endpoint that hands a request on leaves the path whose answers its client gets."""
KEY: Final = "octavo.key"
"""Where the boundary leaves the key that has let a request in."""
LOAD_FORMAT: Final = b"endpoint-load-metrics-format"
LOAD: Final = b"endpoint-load-metrics"
encode: Final = msgspec.json.encode
FAILED: Final = "octavo.failed"
"""Where a stream that fails after its begin leaves the status that it would have had, for logs."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """What a handler may know of a request besides its body."""

    scope: MutableMapping[str, Any]
    body: dict[str, Any]
    """Empty where the endpoint takes none."""
    notes: Notes = field(default_factory=Notes)
    """Where the handler tells what has no effect, before the first event of a stream."""

    @property
    def request_id(self) -> str:
        """What logs call the request, safe to write anywhere; unique unless its client chose it."""
        return str(self.scope["octavo.request_id"])

    @property
    def path_params(self) -> dict[str, str]:
        """What stands for ``{name}`` in the endpoint's path."""
        params: dict[str, str] = self.scope.get("path_params", {})
        return params

    @property
    def query(self) -> dict[str, str]:
        """What stands behind the path's question mark; of a name that is repeated, the last."""
        given: bytes = self.scope.get("query_string", b"")
        return dict(parse_qsl(given.decode("latin-1"), keep_blank_values=True))

    @property
    def owner(self) -> str:
        """Whom what is kept for this request belongs to: a digest of its key, if one was needed."""
        key: bytes = self.scope.get(KEY, b"")
        return sha256(key).hexdigest() if key else ""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer in one piece."""

    body: bytes
    content_type: bytes = b"application/json"
    status: int = 200


@dataclass(frozen=True, slots=True)
class EventStream:
    """An answer in server-sent events, each whole; ``end`` follows the last one."""

    events: AsyncIterator[bytes]
    end: bytes = DONE
    failed: Callable[[ErrorReply], bytes] | None = None
    """Makes the event that tells of a failure after the stream has begun."""


Handler = Callable[[Exchange], Awaitable[Reply | EventStream]]


Read = Callable[[dict[bytes, bytes], Receive, LimitConfig], Awaitable[dict[str, Any]]]
"""Makes a body's fields of headers and what is received."""


class JsonEndpoint:
    """An ASGI app around a handler. A client that leaves ends the handler wherever it waits."""

    def __init__(
        self,
        handler: Handler,
        limits: LimitConfig,
        *,
        read: Read | None = read_json,
        check_room: Callable[[], None] | None = None,
        note_log: NoteLog | None = None,
        load: Callable[[], Awaitable[dict[str, float]]] | None = None,
    ) -> None:
        """``read`` None: there is no body.

        ``check_room`` raises when no request can be taken, before a body is read for nothing.
        ``load`` tells how busy the server is, for balancers that ask for it in a header.
        """
        self._handler = handler
        self._limits = limits
        self._read = read
        self._check_room = check_room
        self._note_log = note_log or NoteLog()
        self._load = load

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request; what fails before the answer has begun is raised."""
        if self._check_room is not None:
            self._check_room()
        headers = dict(scope["headers"])
        body = await self._read(headers, receive, self._limits) if self._read else {}
        exchange = Exchange(scope, body, self._note_log.begin())
        async with _Client(receive):
            reply = await self._handler(exchange)
            if isinstance(reply, EventStream):
                # A task of its own: each event resumes it without the dozen of calls around this.
                last = await asyncio.create_task(self._stream(reply, exchange, send))
        if isinstance(reply, EventStream):
            await send({"type": "http.response.body", "body": last})
        else:
            kind = (b"content-type", reply.content_type)
            told = [kind, *await self._told(exchange)]
            await send_whole(send, reply.status, reply.body, told)

    async def _told(self, exchange: Exchange) -> list[tuple[bytes, bytes]]:
        """Tell the operator of what had no effect; return the headers that tell the client."""
        headers = dict(exchange.scope["headers"])
        told = []
        wanted = headers.get(LOAD_FORMAT, b"")
        if wanted and self._load is not None:
            report = load_report(wanted, await self._load())
            if report is None:
                exchange.notes.add(LOAD_FORMAT.decode(), "has no effect, as it is not TEXT or JSON")
            else:
                told.append((LOAD, report))
        if exchange.notes:
            agent = headers.get(b"user-agent", b"")
            self._note_log.tell(exchange.notes, agent.decode("latin-1"))
            told += exchange.notes.headers()
        return told

    async def _stream(self, reply: EventStream, exchange: Exchange, send: Send) -> bytes:
        """Send all events and return what ends the stream."""
        scope = exchange.scope
        started = False
        try:
            async for event in reply.events:
                if not started:
                    # Only now: a request that fails before its first event gets a status.
                    headers = [*EVENTS, *await self._told(exchange)]
                    await send({"type": "http.response.start", "status": 200, "headers": headers})
                    started = True
                await send({"type": "http.response.body", "body": event, "more_body": True})
        except Exception as error:
            if not started:
                raise
            told = reply_to(error, answered_as(scope))
            scope[FAILED] = told.status
            failed = reply.failed or _failed
            return failed(told)
        finally:
            if isinstance(reply.events, AsyncGenerator):
                await reply.events.aclose()  # ends the request now, not when memory is collected
        return reply.end


def load_report(form: bytes, load: Mapping[str, float]) -> bytes | None:
    """The load as ORCA's header has it, as text or JSON; None for other forms."""
    if form.lower() == b"json":
        return b"JSON " + encode({"named_metrics": load})
    if form.lower() == b"text":
        return f"TEXT {', '.join(f'named_metrics.{n}={v}' for n, v in load.items())}".encode()
    return None


def answered_as(scope: MutableMapping[str, Any]) -> str:
    """The path in whose terms a request's errors are told."""
    path: str = scope.get(ANSWERED_AS, scope["path"])
    return path


def _failed(error: ErrorReply) -> bytes:
    return b"data: " + error.json() + b"\n\n" + DONE


def event(value: Any) -> bytes:
    """A value as one server-sent event."""
    return b"data: " + encode(value) + b"\n\n"


def named_event(kind: str, value: dict[str, Any]) -> bytes:
    """An event that says its type in its header line and in its data."""
    return b"event: " + kind.encode() + b"\ndata: " + encode({"type": kind, **value}) + b"\n\n"


async def send_whole(
    send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]]
) -> None:
    """Send an answer in one piece."""
    headers = [*headers, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, error: ErrorReply) -> None:
    """Send OpenAI's error object."""
    await send_whole(send, error.status, error.json(), [JSON, *error.headers()])


class _Client:
    """Cancels what runs within when the client leaves: raises ClientLeft then."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._has_left = False

    async def __aenter__(self) -> _Client:
        task = asyncio.current_task()
        assert task is not None  # a coroutine runs
        self._task = task
        self._watcher = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._watcher.cancel()
        if self._has_left and isinstance(error, asyncio.CancelledError):
            self._task.uncancel()
            raise ClientLeft from None

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._has_left = True
        self._task.cancel()
