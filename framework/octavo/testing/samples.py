"""What a plugin gives the kit to try an entry with: the function that its ``samples`` name."""

from __future__ import annotations

from typing import Any

from octavo_registry import LazyRegistry
from octavo_registry.lazy import load_target


def samples_of(registry: LazyRegistry[Any], name: str, *args: Any) -> Any:
    """What the function returns for these arguments; None where the entry names none."""
    target = registry.info(name).metadata["samples"]
    return load_target(target)(*args) if target else None
