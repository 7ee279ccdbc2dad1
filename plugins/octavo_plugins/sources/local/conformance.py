"""What the conformance kit tries this source with."""

from __future__ import annotations

from pathlib import Path


def samples(folder: Path) -> str:
    """Write a model's folder; its path is its name."""
    (folder / "config.json").write_text("{}")
    return str(folder)
