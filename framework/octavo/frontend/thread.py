"""A thread that owns a client and its output processor, so that callers may be anywhere."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Final

from octavo.detokenizing.processor import OutputProcessor, ProcessedStep
from octavo.engine.client import EngineClient, cause_of
from octavo.errors import EngineDeadError, OctavoError, ParameterError
from octavo.frontend.streaming import Mailbox, OutputStream
from octavo.inputs.processor import PreparedRequest
from octavo.messages import PackedAdapter, StepOutputs, join_steps

log = logging.getLogger(__name__)

# A wake ends the wait; the limit only bounds how long a poll lasts.
POLL_SECONDS: Final = 60.0
CLOSE_SECONDS: Final = 10.0
# While readers are busy, steps wait for them and for one another: working on a step meanwhile would
# only take the interpreter from those readers. With 256 streams of 250 steps a second on two cores
# a token took this process 11 us so, and 25 without.
BUSY_SECONDS: Final = 0.005
MOST_JOINED_STEPS: Final = 16


class EngineThread:
    """Polls the engine and passes outputs to streams; its methods are for any thread."""

    def __init__(self, client: EngineClient, outputs: OutputProcessor) -> None:
        self._client = client
        self._outputs = outputs
        self._lock = threading.Lock()
        self._end: str | None = None
        self._open: dict[str, OutputStream] = {}
        """Streams whose readers wait for more; guarded by the lock."""
        self._news_seconds = time.monotonic()
        self._calls: set[Future[Any]] = set()
        self._inbox: deque[Callable[[], None]] = deque()
        self._closing = False
        self._streams: dict[str, OutputStream] = {}
        """As the engine's thread sees them: commands change it in the order they were given."""
        self._mailboxes: set[Mailbox] = set()
        """Mailboxes that were posted to last."""
        self._thread = threading.Thread(target=self._run, name="octavo engine", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether requests are still taken."""
        return self._end is None and self._client.alive

    @property
    def end(self) -> str | None:
        """Why the engine has ended; None while it has not."""
        return self._end

    @property
    def num_open(self) -> int:
        """Requests whose readers wait for more."""
        return len(self._open)

    def kill(self, cause: str) -> None:
        """End an engine that hangs: its requests fail for this reason."""
        self._client.kill(cause)

    @property
    def seconds_without_progress(self) -> float:
        """How long requests have waited since the engine last said something; 0 without any."""
        with self._lock:
            return time.monotonic() - self._news_seconds if self._open else 0.0

    def submit(
        self, prepared: PreparedRequest, arrival_seconds: float, stream: OutputStream
    ) -> None:
        """Queue a request whose outputs go to the stream."""
        request_id = prepared.request.request_id
        with self._lock:
            self.check_open()
            if request_id in self._open:
                raise ParameterError(
                    f"request_id={request_id!r} is in use; choose another", param="request_id"
                )
            if not self._open:
                self._news_seconds = time.monotonic()
            self._open[request_id] = stream
            self._inbox.append(partial(self._add, prepared, arrival_seconds, stream))
        self._client.wake()

    def abort(self, request_id: str) -> None:
        """End a request; its stream gets what came so far. Unknown ids are ignored."""
        self._inbox.append(partial(self._abort, request_id))
        self._client.wake()

    def release(self, request_id: str, stream: OutputStream) -> None:
        """End a request that nobody reads any more; its id is free at once.

        Another request may have the id by now: what is not this stream's goes on.
        """
        with self._lock:
            if self._open.get(request_id) is stream:
                del self._open[request_id]
        self._inbox.append(partial(self._release, request_id, stream))
        self._client.wake()

    def add_adapter(self, adapter: PackedAdapter) -> None:
        """Let requests that are submitted later name it."""
        self._tell(partial(self._client.add_adapter, adapter))

    def remove_adapter(self, content_hash: str) -> None:
        """Take it back; requests that were submitted go on."""
        self._tell(partial(self._client.remove_adapter, content_hash))

    def _tell(self, command: Callable[[], None]) -> None:
        self._inbox.append(command)
        self._client.wake()

    def call(self, method: str) -> Future[Any]:
        """Run a utility of the engine."""
        future: Future[Any] = Future()
        with self._lock:
            self.check_open()
            self._calls.add(future)
            self._inbox.append(partial(self._call, method, future))
        self._client.wake()
        return future

    def check_open(self) -> None:
        """Raise EngineDeadError once requests are no longer taken."""
        if self._end is not None:
            raise EngineDeadError(self._end)

    def close(self) -> None:
        """End the engine; streams that still wait fail. Calling it again does nothing."""
        self._closing = True
        self._client.wake()
        if threading.current_thread() is not self._thread:  # where a garbage collection may run
            self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        end = "the engine was closed"
        try:
            while not self._closing:
                while self._inbox:
                    self._inbox.popleft()()
                outputs = self._client.poll(POLL_SECONDS)
                if outputs is not None:
                    self._take(outputs)
        except EngineDeadError as error:
            end = str(error)
        except Exception as error:
            log.exception("the engine's thread failed")
            end = f"the engine's thread failed: {cause_of(error)}"
        finally:
            self._fail(end)
            self._client.close()

    def _take(self, first: StepOutputs) -> None:
        steps = [first]
        try:
            while len(steps) < MOST_JOINED_STEPS and any(m.is_busy for m in self._mailboxes):
                outputs = self._client.poll(BUSY_SECONDS)
                if outputs is None:
                    break
                steps.append(outputs)
        finally:  # also what came before the engine died
            self._news_seconds = time.monotonic()
            for step in join_steps(steps):
                self._pass_on(self._outputs.process(step))

    def _add(self, prepared: PreparedRequest, arrival_seconds: float, stream: OutputStream) -> None:
        request = prepared.request
        self._outputs.add(request, prepared.params, prepared.prompt, arrival_seconds)
        self._streams[request.request_id] = stream
        self._client.add([request])

    def _release(self, request_id: str, stream: OutputStream) -> None:
        if self._streams.get(request_id) is stream:
            self._abort(request_id)

    def _abort(self, request_id: str) -> None:
        self._pass_on(self._outputs.abort(request_id))

    def _call(self, method: str, future: Future[Any]) -> None:
        with self._lock:
            self._calls.discard(future)
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(self._client.call(method))
        except OctavoError as error:
            future.set_exception(error)
            if isinstance(error, EngineDeadError):
                raise

    def _pass_on(self, step: ProcessedStep) -> None:
        if step.aborts:
            self._client.abort(step.aborts)
        batch = [(self._streams[output.request_id], output) for output in step.outputs]
        for stream, output in batch:
            if output.finished:
                del self._streams[output.request_id]
                with self._lock:
                    if self._open.get(output.request_id) is stream:
                        del self._open[output.request_id]
        self._mailboxes = {stream.mailbox for stream, _ in batch}
        for mailbox in self._mailboxes:
            reached = mailbox.post(entry for entry in batch if entry[0].mailbox is mailbox)
            if not reached:  # its event loop was closed with requests under way
                for request_id, stream in self._streams.items():
                    if stream.mailbox is mailbox:
                        self.release(request_id, stream)

    def _fail(self, end: str) -> None:
        with self._lock:
            self._end = end
            streams, self._open = list(self._open.values()), {}
            calls, self._calls = self._calls, set()
        for mailbox in {stream.mailbox for stream in streams}:
            mailbox.post((s, EngineDeadError(end)) for s in streams if s.mailbox is mailbox)
        for future in calls:
            if future.set_running_or_notify_cancel():
                future.set_exception(EngineDeadError(end))
