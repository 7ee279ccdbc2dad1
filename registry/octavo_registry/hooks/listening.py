"""Events on their way to a plugin: in order, in a thread of its own, and never without bound."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from octavo_registry.faults import Faults

log = logging.getLogger(__name__)

MAX_WAITING: Final = 1024
"""Events that wait for one plugin; those that come then are dropped."""
IDLE_SECONDS: Final = 5.0
"""After which the thread ends; the next event starts another."""


class Listener:
    """Hands one plugin the events that it listens to; whoever tells of one never waits."""

    def __init__(self, plugin: str, faults: Faults) -> None:
        self._plugin = plugin
        self._faults = faults
        self._changed = threading.Condition()
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_running = False
        self._is_busy = False

    def tell(self, call: Callable[[], None]) -> None:
        """Have the plugin called, unless too many events wait for it."""
        with self._changed:
            if len(self._waiting) < MAX_WAITING:
                self._waiting.append(call)
                self._changed.notify_all()
                if self._is_running:
                    return
                self._is_running = True
                name = f"events of {self._plugin}"
                threading.Thread(target=self._run, name=name, daemon=True).start()
                return
        num = self._faults.drop(self._plugin)
        if num & (num - 1) == 0:  # not for each: it is slow already
            log.warning(
                "plugin %r is slower than the events that it listens to: %d wait, %d are dropped",
                self._plugin, MAX_WAITING, num,
            )  # fmt: skip

    def settle(self, seconds: float) -> bool:
        """Wait until it has heard of all events so far, at most so long; whether it has."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not (self._waiting or self._is_busy), timeout=seconds
            )

    def _run(self) -> None:
        while True:
            with self._changed:
                self._is_busy = False
                self._changed.notify_all()
                if not self._changed.wait_for(lambda: self._waiting, timeout=IDLE_SECONDS):
                    self._is_running = False
                    return
                call = self._waiting.popleft()
                self._is_busy = True
            call()
