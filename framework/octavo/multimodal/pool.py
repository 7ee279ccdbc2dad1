"""Threads that are not the event loop's, and no more work than they can be asked for."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import TypeVar

from octavo.errors import QueueFullError

T = TypeVar("T")


class WorkPool:
    """Runs calls in a fixed number of threads, first come, first served."""

    def __init__(self, name: str, *, num_threads: int, max_calls: int) -> None:
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix=name)
        self._name = name
        self._max_calls = max_calls
        self._num_calls = 0
        self._lock = Lock()

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Run a call soon; a QueueFullError when ``max_calls`` run or wait.

        A call that hangs keeps its place, so hanging ones never add up.
        """
        with self._lock:
            if self._num_calls >= self._max_calls:
                raise QueueFullError(f"too much {self._name} waits; try again later")
            self._num_calls += 1
        waiting = [call]
        future = self._threads.submit(lambda: waiting.pop()())

        def done(future: Future[T]) -> None:
            waiting.clear()  # of a cancelled call, which stays queued, with all that it holds
            with self._lock:
                self._num_calls -= 1

        future.add_done_callback(done)
        return future

    def close(self) -> None:
        """Drop what waits; what runs goes on to its end."""
        self._threads.shutdown(wait=False, cancel_futures=True)
