"""What the conformance kit tries this package's models and adapters with."""

from __future__ import annotations

from pathlib import Path

from octavo_plugins.sources.embedded.resolver import ADAPTERS


def model(folder: Path) -> str:
    """A model that comes with the source."""
    return "octavo/tiny"


def adapter(folder: Path) -> str:
    """An adapter that comes with the source."""
    return next(iter(ADAPTERS))
