"""What the conformance kit tries this resolver with."""

from __future__ import annotations

from pathlib import Path


def samples(folder: Path) -> str:
    """A folder below one that is allowed."""
    (folder / "one").mkdir()
    return str(folder / "one")
