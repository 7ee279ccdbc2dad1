"""What several processes agree on: which plugins are loaded, from where, with which options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

API_VERSION = "1.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginRecord:
    """Where one plugin comes from."""

    name: str
    module: str | None
    """None: an object of this process, which no manifest can carry."""
    distribution: str | None = None
    """The installed distribution whose entry point it is; None for one given by import path."""
    version: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Made by the first process, sent to all others; plain data for msgpack or JSON."""

    api_version: str
    plugins: tuple[PluginRecord, ...]
    disabled: tuple[str, ...] = ()
    options: dict[str, dict[str, Any]] = field(default_factory=dict)

    def differences(self, available: Sequence[PluginRecord]) -> list[str]:
        """Name all that keeps this process, with these installed plugins, from being the same."""
        found = []
        if self.api_version != API_VERSION:
            found.append(f"plugin API {self.api_version} there, {API_VERSION} here")
        here: Mapping[str, PluginRecord] = {record.name: record for record in available}
        for wanted in self.plugins:
            if wanted.distribution is not None:
                found.extend(_differences(wanted, here.get(wanted.name)))
            elif not _is_importable(wanted.module):
                found.append(f"{wanted.name}: missing here (import path)")
        known = {wanted.name for wanted in self.plugins} | set(self.disabled)
        found.extend(
            f"{record.name}: installed here, not loaded there"
            for record in available
            if record.name not in known
        )
        return found


def _differences(wanted: PluginRecord, here: PluginRecord | None) -> list[str]:
    if here is None:
        return [f"{wanted.name}: missing here ({wanted.distribution} {wanted.version})"]
    return [
        f"{wanted.name}: {what} {there!r} there, {mine!r} here"
        for what, there, mine in (
            ("distribution", wanted.distribution, here.distribution),
            ("version", wanted.version, here.version),
            ("module", wanted.module, here.module),
        )
        if there != mine
    ]


def _is_importable(module: str | None) -> bool:
    try:
        return module is not None and find_spec(module) is not None
    except ModuleNotFoundError:  # of a parent package
        return False
