"""Asks the registered model sources for a name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from octavo.errors import ModelError, UnknownNameError
from octavo_registry.sources import FindsSettings

if TYPE_CHECKING:
    from octavo_registry import PluginHost
    from octavo_registry.sources import ModelSource


def find_model(
    host: PluginHost, name: str, revision: str | None = None, *, weights: bool = True
) -> Path:
    """Return the model's folder from the first source that knows it.

    Sources off the network are asked first, then in the order of their names. Without ``weights``
    those that can leave out the weights do.
    """
    sources: list[tuple[bool, str, ModelSource]] = []
    for key in host.sources.names():
        source = host.sources.make(key)
        sources.append((source.uses_network, key, source))
    sources.sort(key=lambda entry: entry[:2])
    reasons = []
    for _, key, source in sources:
        plugin = host.sources.info(key).plugin
        find = source.find
        if not weights and isinstance(source, FindsSettings):
            find = source.find_settings
        try:
            with host.faults.guard(plugin, f"finding model {name!r}", request=True):
                path = find(name, revision=revision)
                if not isinstance(path, Path | None):
                    raise TypeError(f"find must return a Path or None, not {path!r}")
        except UnknownNameError as error:
            reasons.append(f"; {error}")
            continue
        except ModelError as error:
            raise ModelError(f"{error}{''.join(reasons)}") from error
        if path is not None:
            return path
    at_revision = f" at revision {revision!r}" if revision else ""
    asked = ", ".join(key for _, key, _ in sources) or "none, as no plugin has one"
    raise ModelError(
        f"no model {name!r}{at_revision}; sources asked: {asked}{''.join(reasons)}; give the path "
        "of a folder with config.json and safetensors, or add a plugin with a source that knows "
        "the name"
    )
