"""Main memory that this process can still have: of the machine, or of the control group it is in.

A container has a group with a limit below the machine's memory, of which /proc/meminfo says
nothing; going beyond it ends the process without a word.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

PROC = Path("/proc")
GROUPS = Path("/sys/fs/cgroup")


def host_memory(proc: Path = PROC, groups: Path = GROUPS) -> int:
    """Bytes of main memory that this process can have beside what it has."""
    return min([_of_machine(proc), *_of_groups(proc, groups)])


def _of_machine(proc: Path) -> int:
    try:
        for line in (proc / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # not Linux
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _of_groups(proc: Path, groups: Path) -> Iterator[int]:
    """What each group that has a limit leaves: the process's own, and those around it."""
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, names = groups, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            root = groups / "memory"
        else:
            continue
        inside = PurePosixPath(path.lstrip("/"))
        # Inside a container the path may be one of the host's: then only the root is there.
        for group in (root / part for part in (inside, *inside.parents)):
            left = _left(group, *names)
            if left is not None:
                yield left


def _left(group: Path, limit: str, usage: str, reclaimable: str) -> int | None:
    """Bytes below a group's limit, with those of files that nobody reads; None: it has none."""
    try:
        most, used = (group / limit).read_text().strip(), int((group / usage).read_text())
        if most == "max":
            return None
        counts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return max(int(most) - used + int(counts.get(reclaimable, 0)), 0)
    except (OSError, ValueError):
        return None
