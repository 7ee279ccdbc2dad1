"""Names of adapters that lie in this package. examples/train_tiny_adapter made them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from octavo_registry.adapters import AdapterFolders

ADAPTERS: Final = {"octavo/tiny-pirate": Path(__file__).parent / "tiny_pirate"}


class EmbeddedResolver:
    """Knows them wherever adapters may lie otherwise: they are of Octavo's own making."""

    def find(self, name: str, folders: AdapterFolders) -> Path | None:
        """Return the adapter's folder; None for a name that is not in ``ADAPTERS``."""
        return ADAPTERS.get(name)
