"""What a measurement ran on, without which its figures say little."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from octavo.observability.usage_stats import surroundings
from octavo.wording import counted


def describe_machine() -> dict[str, str]:
    """Versions and the device, of the process that has the engine."""
    found = surroundings()
    if found["device"] == "cpu":
        found["device"] = f"{_processor()}, {counted(os.cpu_count() or 1, 'core')}"
    return found


def _processor() -> str:
    """The name that Linux tells, else what Python knows."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
