"""Requests at their times over connections that are kept; one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from time import perf_counter

import msgspec

from octavo.benchmarking.connection import AnswerError, StreamConnection, Unsent
from octavo.benchmarking.records import Record
from octavo.client import Address

CONNECT_SECONDS = 30.0


class TimedRequest(msgspec.Struct, array_like=True):
    """A request that is ready to be sent."""

    number: int
    offset: float
    """Seconds after the start of the run."""
    path: str
    body: bytes


class _Delta(msgspec.Struct):
    content: str | None = None
    role: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int | None = 0


class _Event(msgspec.Struct):
    """What a stream's event tells; other fields are skipped unread."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: msgspec.Raw = msgspec.Raw()


_decode = msgspec.json.Decoder(_Event).decode


class _Recorder:
    """Makes a record of a stream's events."""

    def __init__(self, number: int) -> None:
        self.record = Record(number, perf_counter(), [], 0.0, 0, 0)
        self._finished = False

    def take(self, data: bytes, now: float) -> None:
        if data.strip() == b"[DONE]":
            return
        record = self.record
        event = _decode(data)
        if event.choices:
            if _has_output(event.choices[0]):
                record.times.append(now)
            if event.choices[0].finish_reason is not None:
                self._finished = True
            record.ended = now
        if event.usage is not None:
            record.num_prompt_tokens = event.usage.prompt_tokens
            record.num_output_tokens = event.usage.completion_tokens or 0
        told = bytes(event.error)
        if told not in (b"", b"null"):
            record.error = told[:300].decode(errors="replace")

    def finish(self, error: str = "") -> Record:
        record = self.record
        if not error and not self._finished:
            error = "the answer ended without a finish_reason"
        record.error = record.error or error
        record.ended = record.ended or perf_counter()
        record.num_output_tokens = record.num_output_tokens or len(record.times)
        return record


def _has_output(choice: _Choice) -> bool:
    """Neither a chat's first event, which names the role, nor a last one that only ends it."""
    if choice.text is not None:
        return bool(choice.text) or choice.finish_reason is None
    delta = choice.delta
    if delta is None:
        return False
    if delta.content or delta.reasoning_content or delta.reasoning:
        return True
    return delta.content is not None and delta.role is None and choice.finish_reason is None


@dataclass(slots=True)
class LoadClient:
    """The connections of one process to a server."""

    address: Address
    max_concurrency: int | None = None
    """Requests under way at most; those that are due wait unsent, which no figure counts."""
    ended: Callable[[Record], None] = lambda record: None
    """Hears of each that has ended."""

    async def run(self, requests: Sequence[TimedRequest], begin: float) -> list[Record]:
        """Send each request at ``begin`` plus its offset, or later; return once all have ended."""
        idle: list[StreamConnection] = []
        most = self.max_concurrency
        free: AbstractAsyncContextManager[object]
        free = nullcontext() if most is None else asyncio.Semaphore(most)
        tasks = []
        for each in sorted(requests, key=lambda request: request.offset):
            delay = begin + each.offset - perf_counter()
            if delay > 0:
                await asyncio.sleep(delay)
            tasks.append(asyncio.create_task(self._one(each, idle, free)))
        records = list(await asyncio.gather(*tasks))
        for connection in idle:
            connection.close()
        return records

    async def _one(
        self,
        request: TimedRequest,
        idle: list[StreamConnection],
        free: AbstractAsyncContextManager[object],
    ) -> Record:
        data = self._bytes(request)
        async with free:
            recorder = _Recorder(request.number)
            try:
                connection = await self._request(data, recorder, idle)
            except (AnswerError, OSError, TimeoutError, msgspec.DecodeError) as error:
                record = recorder.finish(str(error) or type(error).__name__)
            else:
                record = recorder.finish()
                if connection.reusable:
                    idle.append(connection)
                else:
                    connection.close()
            self.ended(record)
            return record

    async def _request(
        self, data: bytes, recorder: _Recorder, idle: list[StreamConnection]
    ) -> StreamConnection:
        while idle:  # a server may have closed what was kept
            connection = idle.pop()
            try:
                await connection.request(data, recorder.take)
            except Unsent:
                continue
            return connection
        connection = await self._connect()
        try:
            await connection.request(data, recorder.take)
        except BaseException:
            connection.close()
            raise
        return connection

    async def _connect(self) -> StreamConnection:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(CONNECT_SECONDS):
            _, connection = await loop.create_connection(
                StreamConnection,
                self.address.host,
                self.address.port,
                ssl=self.address.ssl_context(),
            )
        return connection

    def _bytes(self, request: TimedRequest) -> bytes:
        address = self.address
        headers = address.headers() | {
            "host": address.authority,
            "content-type": "application/json",
            "content-length": str(len(request.body)),
        }
        lines = [f"POST {address.path}{request.path} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join([*lines, "", ""]).encode() + request.body
