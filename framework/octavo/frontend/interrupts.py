"""Ctrl-C that waits for the end of an engine's step, which must not be torn apart."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType


class InterruptsBetweenSteps:
    """Within ``with``, Ctrl-C raises at the next ``check``; a second one raises at once.

    Does nothing outside the main thread, or where the program has a handler of its own.
    """

    def __init__(self) -> None:
        self._interrupted = False
        self._installed = False

    def __enter__(self) -> InterruptsBetweenSteps:
        self._installed = (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        )
        if self._installed:
            signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if error is None:
            self.check()

    def check(self) -> None:
        """Raise the KeyboardInterrupt that has waited."""
        if self._interrupted:
            self._interrupted = False
            raise KeyboardInterrupt

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._interrupted:
            raise KeyboardInterrupt
        self._interrupted = True
