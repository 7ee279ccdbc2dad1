"""Outputs on their way from the engine's thread to event loops, without unbounded queues."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from octavo.errors import OctavoError
from octavo.outputs import RequestOutput

AT_ONCE: Final = 32
"""Readers that are woken before the event loop does other things. Where 256 were woken at once,
those waited up to 16 ms, and up to 8 for groups (in 99 of 100 cases; benchmarks.http_host)."""


class OutputStream:
    """One request's outputs; at most one waits, into which those that follow are merged."""

    def __init__(self, mailbox: Mailbox, *, delta: bool, interval: int = 1) -> None:
        """A ``delta`` has ``interval`` tokens at least, unless it is the first or the last."""
        self.mailbox = mailbox
        self._delta = delta
        self._interval = interval if delta else 1
        self._has_begun = False
        self._waiting: RequestOutput | None = None
        self._failure: OctavoError | None = None
        self._reader: asyncio.Future[None] | None = None

    async def next(self) -> RequestOutput:
        """Wait for what has come since the last call; for one caller at a time."""
        while True:
            with self.mailbox.lock:
                output = None
                if self._is_due():
                    output, self._waiting = self._waiting, None
                failure = self._failure
            if output is not None:
                self._has_begun = True
                return output
            if failure is not None:
                raise failure
            self._reader = self.mailbox.loop.create_future()
            try:
                await self._reader
            finally:
                self._reader = None

    def put(self, arrival: RequestOutput | OctavoError) -> None:
        """Take an output, or the failure that follows the last; only under the mailbox's lock."""
        if isinstance(arrival, OctavoError):
            self._failure = arrival
        elif self._delta and self._waiting is not None:
            merge_delta(self._waiting, arrival)
        else:
            self._waiting = arrival

    def ring(self) -> None:
        """Wake the reader, if it waits; only on its event loop."""
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _is_due(self) -> bool:
        """Whether what waits may be read; only under the mailbox's lock."""
        waiting = self._waiting
        if self._interval == 1 or waiting is None or not self._has_begun or waiting.finished:
            return True
        longest = max((len(output.token_ids) for output in waiting.outputs), default=0)
        return longest >= self._interval or self._failure is not None


class Mailbox:
    """Hands a batch to the streams of one event loop, which wakes their readers in groups."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.lock = threading.Lock()
        self._due: OrderedDict[OutputStream, None] = OrderedDict()
        """Streams whose readers are to be woken, the longest waiting first."""
        self.is_busy = False
        """Whether readers have yet to take what was posted."""

    def post(self, batch: Iterable[tuple[OutputStream, RequestOutput | OctavoError]]) -> bool:
        """Take outputs from any thread; False when the event loop is closed."""
        with self.lock:
            wake = not self._due
            self.is_busy = True
            for stream, arrival in batch:
                stream.put(arrival)
                self._due[stream] = None
        if self.loop.is_closed():  # also where a wake is still due that never comes
            self.is_busy = False
            return False
        if wake:
            try:
                self.loop.call_soon_threadsafe(self._ring)
            except RuntimeError:
                self.is_busy = False
                return False
        return True

    def _ring(self) -> None:
        with self.lock:
            due = [self._due.popitem(last=False)[0] for _ in range(min(AT_ONCE, len(self._due)))]
            is_last = not self._due
        for stream in due:
            stream.ring()
        self.loop.call_soon(self._settle if is_last else self._ring)  # after these readers

    def _settle(self) -> None:
        with self.lock:
            self.is_busy = bool(self._due)


class Mailboxes(threading.local):
    """One for the event loop of each thread that asks."""

    _own: Mailbox | None = None

    def of(self, loop: asyncio.AbstractEventLoop) -> Mailbox:
        """The one of a loop that runs in this thread."""
        if self._own is None or self._own.loop is not loop:
            self._own = Mailbox(loop)
        return self._own


def merge_delta(into: RequestOutput, later: RequestOutput) -> None:
    """Append a later delta of the same request to one that nobody has read yet."""
    known = {output.index: output for output in into.outputs}
    for new in later.outputs:
        old = known.get(new.index)
        if old is None:
            into.outputs.append(new)
            continue
        old.text += new.text
        old.token_ids.extend(new.token_ids)
        if old.logprobs is not None and new.logprobs is not None:
            old.logprobs.extend(new.logprobs)
        if old.token_starts is not None and new.token_starts is not None:
            old.token_starts.extend(new.token_starts)
        old.cumulative_logprob = new.cumulative_logprob
        old.finish_reason = new.finish_reason
        old.stop_reason = new.stop_reason
    into.outputs.sort(key=lambda output: output.index)
    into.finished = later.finished
    into.metrics = later.metrics
    into.error, into.error_type = later.error, later.error_type
    into.prompt_logprobs = later.prompt_logprobs or into.prompt_logprobs
