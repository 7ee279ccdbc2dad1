"""Adapters by name: which plugin knows where one is, and which can read it."""

from __future__ import annotations

from pathlib import Path

from octavo.errors import AdapterError, ModelError, OctavoError, UnknownAdapterError
from octavo.model_folder.sources import find_model
from octavo.wording import shown
from octavo_registry import PluginHost
from octavo_registry.adapters import (
    Adapter,
    AdapterFolders,
    AdapterFormat,
    AdapterResolver,
    ListsAdapters,
)


class AdapterLibrary:
    """All formats and resolvers of a process. What reads files belongs in a thread.

    With ``uses_hub`` a name that no resolver knows is looked up as a model's is; that fetches
    whatever is named, and so is not for names that come in requests.
    """

    def __init__(
        self, host: PluginHost, folders: AdapterFolders, *, uses_hub: bool = False
    ) -> None:
        self._host = host
        self._folders = folders
        self._uses_hub = uses_hub
        made = [(host.adapters.info(key).plugin, host.adapters.make(key)) for key in
                host.adapters.names()]  # fmt: skip
        self._formats = [(plugin, it) for plugin, it in made if isinstance(it, AdapterFormat)]
        self._resolvers = [(plugin, it) for plugin, it in made if isinstance(it, AdapterResolver)]

    def find(self, name: str) -> Path:
        """Return the folder of the first resolver that knows the name."""
        for plugin, resolver in self._resolvers:
            with self._host.faults.guard(plugin, f"finding adapter {shown(name)}", request=True):
                path = resolver.find(name, self._folders)
                if not isinstance(path, Path | None):
                    raise TypeError(f"find must return a Path or None, not {shown(path)}")
            if path is not None:
                return path
        if not self._uses_hub:
            raise UnknownAdapterError(
                f"no adapter {shown(name)}: it is neither a folder below those that "
                "--allowed-lora-path names, nor known by a resolver"
            )
        if name.startswith((".", "/", "~")):
            raise UnknownAdapterError(
                f"no adapter {shown(name)}: there is no such folder; give the path of one that has "
                "adapter_config.json, or a hub's name"
            )
        try:
            return find_model(self._host, name)
        except ModelError as error:
            raise UnknownAdapterError(f"no adapter {shown(name)}: {error}") from error

    def read(self, folder: Path) -> Adapter:
        """Return the adapter from the first format that is the folder's."""
        for plugin, format_ in self._formats:
            try:
                with self._host.faults.guard(plugin, f"reading adapter {folder}", request=True):
                    adapter = format_.read(folder)
                    if adapter is not None:
                        check_form(adapter)
            except AdapterError:
                raise
            except OctavoError as error:
                raise AdapterError(f"{folder}: {error}") from error
            if adapter is not None:
                return adapter
        formats = ", ".join(plugin for plugin, _ in self._formats) or "none"
        raise AdapterError(
            f"{folder} is no adapter of a known format; formats come from: {formats}"
        )

    def names(self) -> list[str]:
        """All names that resolvers can list, each once, sorted."""
        names: set[str] = set()
        for plugin, resolver in self._resolvers:
            if isinstance(resolver, ListsAdapters):
                with self._host.faults.guard(plugin, "listing adapters", request=True):
                    known = resolver.names(self._folders)
                    if isinstance(known, str) or not all(isinstance(each, str) for each in known):
                        raise TypeError(f"names must return a list of texts, not {shown(known)}")
                    names.update(known)
        return sorted(names)


def check_form(adapter: object) -> None:
    """Raise for what a format must not return, whatever its files have."""
    if not isinstance(adapter, Adapter):
        raise TypeError(f"read must return an Adapter or None, not {shown(adapter)}")
    if not adapter.down.keys() == adapter.up.keys() == adapter.scaling.keys():
        raise ValueError("read must return the same linears in down, up and scaling")
    if not adapter.content_hash:
        raise ValueError("read must return the content_hash of what the adapter computes")
