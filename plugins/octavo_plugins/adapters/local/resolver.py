"""A path is an adapter's name, where the operator lets paths be read."""

from __future__ import annotations

from pathlib import Path

from octavo.adapters.folders import folder_below
from octavo_registry.adapters import AdapterFolders


class LocalResolver:
    """Finds folders below those allowed, by absolute paths or such that begin there."""

    def find(self, name: str, folders: AdapterFolders) -> Path | None:
        """Return the folder with links resolved; outside of what is allowed there is none."""
        return folder_below(folders.allowed, name)
