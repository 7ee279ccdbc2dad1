"""Outputs on their way from the engine's thread to event loops, without unbounded queues."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable

from octavo.errors import OctavoError
from octavo.outputs import RequestOutput


class Stream:
    """One request's outputs; at most one waits, into which those that follow are merged."""

    def __init__(self, mailbox: Mailbox, *, delta: bool) -> None:
        self.mailbox = mailbox
        self._delta = delta
        self._waiting: RequestOutput | None = None
        self._failure: OctavoError | None = None
        self._news = asyncio.Event()

    async def next(self) -> RequestOutput:
        """Wait for what has come since the last call."""
        while True:
            await self._news.wait()
            self._news.clear()
            with self.mailbox.lock:
                output, self._waiting = self._waiting, None
            if output is not None:
                if self._failure is not None:
                    self._news.set()
                return output
            if self._failure is not None:
                raise self._failure
            # A ring whose output was merged into one that has been read already.

    def put(self, arrival: RequestOutput | OctavoError) -> None:
        """Take an output, or the failure that follows the last; only under the mailbox's lock."""
        if isinstance(arrival, OctavoError):
            self._failure = arrival
        elif self._delta and self._waiting is not None:
            merge_delta(self._waiting, arrival)
        else:
            self._waiting = arrival

    def ring(self) -> None:
        """Tell the reader that there is news; only on its event loop."""
        self._news.set()


class Mailbox:
    """Hands a batch to the streams of one event loop, and wakes the loop once for all of them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.lock = threading.Lock()
        self._due: set[Stream] = set()
        self.is_busy = False
        """Whether readers have yet to take what was posted."""

    def post(self, batch: Iterable[tuple[Stream, RequestOutput | OctavoError]]) -> bool:
        """Take outputs from any thread; False when the event loop is closed."""
        with self.lock:
            wake = not self._due
            self.is_busy = True
            for stream, arrival in batch:
                stream.put(arrival)
                self._due.add(stream)
        if wake:
            try:
                self.loop.call_soon_threadsafe(self._ring)
            except RuntimeError:
                self.is_busy = False
                return False
        return True

    def _ring(self) -> None:
        with self.lock:
            due, self._due = self._due, set()
        for stream in due:
            stream.ring()
        self.loop.call_soon(self._settle)  # after the readers, who were woken before

    def _settle(self) -> None:
        with self.lock:
            self.is_busy = bool(self._due)


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
        old.cumulative_logprob = new.cumulative_logprob
        old.finish_reason = new.finish_reason
        old.stop_reason = new.stop_reason
    into.outputs.sort(key=lambda output: output.index)
    into.finished = later.finished
    into.metrics = later.metrics
    into.error, into.error_type = later.error, later.error_type
    into.prompt_logprobs = later.prompt_logprobs or into.prompt_logprobs
