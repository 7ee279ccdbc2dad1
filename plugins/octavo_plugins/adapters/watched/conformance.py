"""What the conformance kit tries this resolver with."""

from __future__ import annotations

from pathlib import Path


def samples(folder: Path) -> str:
    """A folder in one that is watched."""
    (folder / "one").mkdir()
    return "one"
