"""An HTTP worker's way to the engine that the worker's parent has started."""

from __future__ import annotations

import weakref
from contextlib import ExitStack
from pathlib import Path

from octavo.engine.socket_client import SocketClient
from octavo.errors import EngineDeadError
from octavo.messages import EngineReady


class WorkerLink(SocketClient):
    """Waits at its own address for the engine; what becomes of that is told by the parent."""

    _told: str | None = None

    def __init__(self, address: str, ready: EngineReady) -> None:
        """``ready`` is what the engine has told the parent."""
        self.ready = ready
        path = Path(address.removeprefix("ipc://"))
        with ExitStack() as cleanup:
            super().__init__(path, cleanup)
            cleanup.callback(path.unlink, missing_ok=True)
            self._wait_for_engine()
            self._close = weakref.finalize(self, cleanup.pop_all().close)

    @property
    def alive(self) -> bool:
        """Whether nothing else was told."""
        return self._end is None and self._told is None

    def kill(self, cause: str) -> None:
        """Take the engine as dead: the parent has told so, or will see to it."""
        self._told = cause
        self.wake()

    def close(self) -> None:
        """Leave the engine to its other clients."""
        self._end = self._end or "the engine was closed"
        self._close()

    def _is_gone(self) -> bool:
        return self._told is not None

    def _died(self) -> EngineDeadError:
        self._end = self._end or self._told or "the engine has closed its connection"
        return EngineDeadError(self._end)
