"""The engine of several HTTP workers, as the process that has started all of them sees it."""

from __future__ import annotations

import itertools
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from octavo.config import EngineConfig
from octavo.engine.process_client import ProcessClient
from octavo.errors import EngineDeadError
from octavo.server.processes.messages import EngineStarted
from octavo_registry.manifest import Manifest

PING_SECONDS: Final = 0.25
"""How much later than one in its own process an engine is seen to hang."""


class SharedEngine:
    """Asks nothing of its engine but whether it still makes steps."""

    def __init__(
        self, config: EngineConfig, manifest: Manifest, folder: Path, num_workers: int
    ) -> None:
        """Workers' sockets are in the folder."""
        self._config = config
        self._manifest = manifest
        self._new_addresses = (f"ipc://{folder}/worker-{i}" for i in itertools.count())
        self._addresses = [""] * num_workers
        self._asked_seconds = 0.0
        self._start()

    @property
    def end(self) -> str | None:
        """Why it has ended; None while it has not."""
        try:
            self._client.poll(0)
        except EngineDeadError as error:
            return str(error)
        return None

    @property
    def seconds_without_progress(self) -> float:
        """How long it has not answered a ping, which it does between steps."""
        now = time.monotonic()
        if self._client.has_answered and now - self._asked_seconds > PING_SECONDS:
            with suppress(EngineDeadError):
                self._client.ping()
            self._asked_seconds = now
        return 0.0 if self._client.has_answered else now - self._asked_seconds

    def told(self, place: int) -> EngineStarted:
        """What the worker at this place has to know of it."""
        return EngineStarted(self._addresses[place], self._client.ready)

    def kill(self, cause: str) -> None:
        """End it at once, for this reason."""
        self._client.kill(cause)

    def restart(self) -> None:
        """Start another in its place; all workers get new addresses."""
        self._client.close()  # its process may still hold the device's memory
        self._start()

    def replace_worker(self, place: int) -> None:
        """Drop all that a lost worker has asked for; the next one gets a new address."""
        self._addresses[place] = next(self._new_addresses)
        with suppress(EngineDeadError):
            self._client.replace_worker(place, self._addresses[place])

    def close(self) -> None:
        """End it."""
        self._client.close()

    def _start(self) -> None:
        self._addresses = [next(self._new_addresses) for _ in self._addresses]
        self._client = ProcessClient(
            self._config, self._manifest, worker_addresses=tuple(self._addresses)
        )
        self._asked_seconds = time.monotonic()
