"""Tests see Octavo's own plugins and those that a test brings, not what is installed beside them.

Python imports this module when it starts, in every process whose PYTHONPATH has this folder.
"""

from __future__ import annotations

import sysconfig
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

_every_entry_point = metadata.entry_points
_INSTALLED = {Path(sysconfig.get_path(kind)).resolve() for kind in ("purelib", "platlib")}


def entry_points(**wanted: str) -> Any:
    """As Python's own; of group "octavo" without those that others have installed here."""
    found = _every_entry_point(**wanted)
    if wanted.get("group") != "octavo":
        return found
    return metadata.EntryPoints(point for point in found if not _is_foreign(point.dist))


@cache
def _is_foreign(dist: metadata.Distribution | None) -> bool:
    if dist is None or dist.name == "octavo":
        return False
    return Path(str(dist.locate_file(""))).resolve() in _INSTALLED


metadata.entry_points = entry_points
