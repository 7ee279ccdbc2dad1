"""Metrics of a server with several HTTP processes: each leaves its own where the others find them.

Whoever is asked writes its own file, then reads all. What a file says never goes back, so neither
does a sum, whichever process answers.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

from octavo.observability.metrics import MetricValues

PUBLISH_SECONDS: Final = 0.5
"""How old the other processes' counts are at most."""


class SharedMetrics:
    """One process's place in a folder that all processes of a server have."""

    def __init__(self, folder: Path, process: int) -> None:
        self._folder = folder
        self._name = f"metrics-{process}"

    def publish(self, metrics: list[MetricValues]) -> None:
        """Let the others see these from now on."""
        new = self._folder / f"new-{self._name}"
        new.write_bytes(msgspec.msgpack.encode(metrics))
        os.replace(new, self._folder / self._name)

    def read(self) -> list[list[MetricValues]]:
        """Return what each process has published last, this one too."""
        return [
            msgspec.msgpack.decode(file.read_bytes(), type=list[MetricValues])
            for file in sorted(self._folder.glob("metrics-*"))
        ]
