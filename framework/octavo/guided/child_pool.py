"""Children that do the same work, each for one caller at a time."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from octavo.errors import RequestFailedError
from octavo.guided.process import ChildProcess


class ChildPool:
    """Starts a child where none is idle; for any thread. Its callers see to how many there are."""

    def __init__(self, module: str, begin: Callable[[ChildProcess], None]) -> None:
        """``begin`` tells a new child what it needs, and waits until it is ready."""
        self._module = module
        self._begin = begin
        self._lock = threading.Lock()
        self._idle: list[ChildProcess] = []
        self._children: set[ChildProcess] = set()
        self._is_closed = False
        # Also at garbage collection and at the interpreter's exit.
        self._close = weakref.finalize(self, _kill_all, self._children)

    @contextmanager
    def child(self) -> Iterator[ChildProcess]:
        """One that nobody else asks meanwhile; it stays for the next caller while it lives."""
        child = self._take()
        try:
            yield child
        finally:
            with self._lock:
                if child.alive and not self._is_closed:
                    self._idle.append(child)
                else:
                    self._children.discard(child)
                    child.kill()

    def close(self) -> None:
        """End the children; calling it again does nothing."""
        with self._lock:
            self._is_closed = True
        self._close()

    def _take(self) -> ChildProcess:
        with self._lock:
            while self._idle:
                child = self._idle.pop()
                if child.alive:
                    return child
                self._children.discard(child)
            if self._is_closed:
                raise RequestFailedError("the engine is closed")
            child = ChildProcess(self._module)
            self._children.add(child)
        try:
            self._begin(child)
        except BaseException:
            with self._lock:
                self._children.discard(child)
            child.kill()
            raise
        return child


def _kill_all(children: set[ChildProcess]) -> None:
    for child in list(children):
        child.kill()
