"""How a front end talks to an engine, whether it runs in this process or in one of its own."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any, Protocol

from octavo.errors import EngineDeadError, OctavoError
from octavo.messages import EngineReady, EngineRequest, PackedAdapter, StepOutputs
from octavo.pooled_calls import PooledCall
from octavo_registry.faults import one_line

log = logging.getLogger(__name__)


class Engine(Protocol):
    """What an engine offers to its client or to the loop of its process."""

    ready: EngineReady

    @property
    def has_work(self) -> bool:
        """Whether something waits, runs or is under way."""
        ...

    def add(self, requests: list[EngineRequest]) -> None:
        """Queue them; one that is refused ends with an error in the next outputs."""
        ...

    def add_call(self, call: PooledCall) -> None:
        """Queue a call's texts, or more of them; for an engine whose model reads only."""
        ...

    def abort(self, ids: list[int]) -> None:
        """End these sequences or calls now; unknown ids are ignored."""
        ...

    def add_adapter(self, adapter: PackedAdapter) -> None:
        """Let later requests name it."""
        ...

    def remove_adapter(self, content_hash: str) -> None:
        """Take no more requests that name it; those that are there go on."""
        ...

    def step(self) -> StepOutputs:
        """Launch the next step and return what the oldest under way gave."""
        ...

    def use_idle_time(self) -> bool:
        """Prepare something for later steps, briefly; False if nothing is left to prepare."""
        ...

    def call(self, method: str) -> Any:
        """Run a named utility."""
        ...

    def close(self) -> None:
        """Free the device."""
        ...


class EngineClient(Protocol):
    """One engine's front. It belongs to one thread; others may call ``wake`` and ``kill`` only.

    Every method raises ``EngineDeadError`` once the engine has ended.
    """

    ready: EngineReady

    @property
    def alive(self) -> bool:
        """Whether the engine still answers."""
        ...

    def add(self, requests: list[EngineRequest]) -> None:
        """Queue these; their outputs come from ``poll``."""
        ...

    def add_call(self, call: PooledCall) -> None:
        """Queue a call's texts, or more of them; their vectors come from ``poll``."""
        ...

    def abort(self, ids: list[int]) -> None:
        """End these sequences or calls; outputs that are on their way may still come."""
        ...

    def add_adapter(self, adapter: PackedAdapter) -> None:
        """Let later requests name it by its content hash; it has been checked."""
        ...

    def remove_adapter(self, content_hash: str) -> None:
        """Take back one ``add_adapter``; requests that are there go on."""
        ...

    def poll(self, timeout_seconds: float) -> StepOutputs | None:
        """Return the next outputs; None when time is up or another thread called ``wake``."""
        ...

    def wake(self) -> None:
        """Make a ``poll`` that waits return soon; the only method for any thread."""
        ...

    def call(self, method: str) -> Any:
        """Run a utility of the engine ("reset_prefix_cache", "stats") and return its result."""
        ...

    def kill(self, cause: str) -> None:
        """End an engine that hangs, for this reason; also for any thread."""
        ...

    def close(self) -> None:
        """End the engine; calling it again does nothing."""
        ...


def cause_of(error: Exception) -> str:
    """Say what went wrong in one line; a stranger's error by its class too."""
    return " ".join(str(error).split()) if isinstance(error, OctavoError) else one_line(error)


class InProcessClient:
    """An engine in the caller's process: ``poll`` runs its next step."""

    def __init__(self, core: Engine) -> None:
        self.ready = core.ready
        self._core = core
        self._end: str | None = None
        self._woken = threading.Event()

    @property
    def alive(self) -> bool:
        """Whether it was neither closed nor failed."""
        return self._end is None

    def add(self, requests: list[EngineRequest]) -> None:
        """Queue these."""
        self._check_alive()
        self._core.add(requests)

    def add_call(self, call: PooledCall) -> None:
        """Queue a call's texts, or more of them."""
        self._check_alive()
        self._core.add_call(call)

    def abort(self, ids: list[int]) -> None:
        """End these now."""
        self._check_alive()
        self._core.abort(ids)

    def add_adapter(self, adapter: PackedAdapter) -> None:
        """Let later requests name it."""
        self._check_alive()
        self._core.add_adapter(adapter)

    def remove_adapter(self, content_hash: str) -> None:
        """Take no more requests that name it."""
        self._check_alive()
        self._core.remove_adapter(content_hash)

    def poll(self, timeout_seconds: float) -> StepOutputs | None:
        """Run one step; without work, wait for ``wake``."""
        self._check_alive()
        try:
            if self._core.has_work:
                return self._core.step()
            deadline = time.monotonic() + timeout_seconds
            while not self._woken.is_set() and self._core.use_idle_time():
                timeout_seconds = deadline - time.monotonic()
                if timeout_seconds <= 0:
                    return None
        except Exception as error:
            if self._end is None:  # not closed inside the step, by a signal's handler
                self._end = f"the engine failed: {cause_of(error)}"
                log.exception("the engine's step failed")
            raise EngineDeadError(self._end) from error
        self._woken.wait(timeout_seconds)
        self._woken.clear()
        return None

    def wake(self) -> None:
        """Make a waiting ``poll`` return."""
        self._woken.set()

    def kill(self, cause: str) -> None:
        """Run no further step; one that hangs in this process cannot be ended."""
        self._end = self._end or cause
        self._woken.set()

    def call(self, method: str) -> Any:
        """Run a utility of the engine."""
        self._check_alive()
        return self._core.call(method)

    def close(self) -> None:
        """Free what the engine holds."""
        if self._end is None:
            self._end = "the engine was closed"
        self._core.close()

    def _check_alive(self) -> None:
        if self._end is not None:
            raise EngineDeadError(self._end)
