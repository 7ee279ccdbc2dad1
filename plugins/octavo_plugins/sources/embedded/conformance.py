"""What the conformance kit tries this package's models and adapters with."""

from __future__ import annotations

from pathlib import Path

from octavo_plugins.sources.embedded.resolver import ADAPTERS


def model(folder: Path) -> str:
    """One that lies here."""
    return "octavo/tiny"


def adapter(folder: Path) -> str:
    """The same."""
    return next(iter(ADAPTERS))
