"""``--lora-dir``: each folder in it is an adapter, named as the folder is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from octavo.adapters.folders import folder_below
from octavo_registry.adapters import AdapterFolders

NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]*")
"""One part of a path, and none that is hidden."""


class WatchedResolver:
    """Looks whenever it is asked: a folder that was put there counts at once."""

    def find(self, name: str, folders: AdapterFolders) -> Path | None:
        """Return the first folder of that name; a link may point to what lies beside it only."""
        return None if NAME.fullmatch(name) is None else folder_below(folders.watched, name)

    def names(self, folders: AdapterFolders) -> Sequence[str]:
        """See ``ListsAdapters``; a folder that cannot be listed has none."""
        names = {path.name for root in folders.watched for path in _listed(root)}
        return [name for name in sorted(names) if self.find(name, folders) is not None]


def _listed(root: Path) -> list[Path]:
    try:
        return list(root.iterdir())
    except OSError:
        return []
