"""The requests of one offline call, which may run while others are still made."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType

from octavo.inputs import PreparedRequest

Making = Callable[[], PreparedRequest]


class Preparing:
    """Makes requests in threads, for use within ``with``; without threads, at once.

    ``made`` has them in the order of their calls. Where one cannot be made, whoever asks for more
    gets its error.
    """

    def __init__(self, calls: Sequence[Making], num_threads: int) -> None:
        self.made: list[PreparedRequest] = []
        self.count = len(calls)
        self._threads = ThreadPoolExecutor(num_threads) if num_threads else None
        self._coming: deque[Future[PreparedRequest]] = deque()
        self._num_taken = 0
        if self._threads is None:
            self.made = [call() for call in calls]
        else:
            try:
                self._coming.extend(self._threads.submit(call) for call in calls)
            except BaseException:  # Ctrl-C: nobody else ends the threads
                self._threads.shutdown(cancel_futures=True)
                raise

    def tell(self, call: Callable[[], None]) -> None:
        """Call this from any thread, each time that another one is made or cannot be."""
        for coming in self._coming:
            coming.add_done_callback(lambda _: call())

    def take(self, seconds: float) -> list[PreparedRequest]:
        """Requests made since it was asked before; waits so long for the next."""
        if self._coming:
            wait([self._coming[0]], seconds)
        while self._coming and self._coming[0].done():
            self.made.append(self._coming.popleft().result())
        new = self.made[self._num_taken :]
        self._num_taken = len(self.made)
        return new

    def __enter__(self) -> Preparing:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
