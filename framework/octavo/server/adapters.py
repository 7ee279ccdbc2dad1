"""The LoRA adapters that requests may name as their model."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from octavo.adapters.library import AdapterLibrary
from octavo.config.server import AdapterConfig, LoRAModule
from octavo.errors import AdapterError, ConfigError, UnknownAdapterError
from octavo.frontend.async_llm import AsyncLLM
from octavo.params import LoRARequest
from octavo.server.http.errors import HttpError
from octavo.wording import shown
from octavo_registry.adapters import AdapterFolders

MAX_NAME_CHARS: Final = 128
NO_NAME: Final = "must be of 1 to 128 printable characters, and no path such as ../x"


def is_name(text: str) -> bool:
    """Whether a list of models, a label of a metric and a line of the log can show it.

    Nor does it lead out of a folder: clients keep files by it, and ask for it in a path.
    """
    is_shown = text.isprintable() and text == text.strip() and len(text) <= MAX_NAME_CHARS
    parts = text.split("/")
    return is_shown and "\\" not in text and not any(part in ("", ".", "..") for part in parts)


def check_adapters(config: AdapterConfig, model_names: Collection[str], *, is_on: bool) -> None:
    """Raise for what cannot be, whatever the model; ``is_on`` is the engine's enable_lora."""
    if not is_on:
        if config.modules or config.lora_dir or config.takes_changes:
            raise ConfigError("adapters need enable_lora; give --enable-lora")
        return
    for folder in (*config.lora_dir, *config.allowed_lora_path):
        if not Path(folder).is_dir():
            raise ConfigError(f"{folder}: lora_dir and allowed_lora_path must be folders")
    for module in config.modules:
        if module.name in model_names:
            raise ConfigError(f"lora_modules: {module.name!r} is the model's own name")
        if not is_name(module.name):
            raise ConfigError(f"lora_modules: {shown(module.name)} {NO_NAME}")
        if module.path.startswith(("/", "./", "../")) and not Path(module.path).is_dir():
            raise ConfigError(f"lora_modules: no adapter {module.path!r}: there is no such folder")


@dataclass(frozen=True, slots=True)
class Seen:
    """A folder as it was when a name was looked up."""

    folder: Path
    files: frozenset[tuple[str, int, int, int]]
    """Each one's name, number, time and size."""

    @classmethod
    def now(cls, folder: Path) -> Seen:
        """One that is gone has no files."""
        files = set()
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                stat = entry.stat()
                files.add((entry.name, stat.st_ino, stat.st_mtime_ns, stat.st_size))
        return cls(folder, frozenset(files))


@dataclass(frozen=True, slots=True)
class Served:
    """An adapter that was named by the operator, or by a request that may."""

    module: LoRAModule
    folders: AdapterFolders
    """Where its path may lie, whenever it is read."""


class ServedAdapters:
    """Adapters by the names of requests.

    What may be read is decided here: the engine's ``LoadedAdapters`` is given folders only.
    """

    def __init__(self, engine: AsyncLLM, config: AdapterConfig, model_names: Collection[str]):
        self._engine = engine
        self._model_names = model_names
        self._served: dict[str, Served] = {}
        """Served adapters by name; resolvers are asked again where a folder has changed."""
        self._seen: dict[str, Seen] = {}
        """What was seen of the adapters of resolvers, by name."""
        self._libraries: dict[AdapterFolders, AdapterLibrary] = {}
        self._watched = AdapterFolders(watched=tuple(map(Path, config.lora_dir)))
        self._allowed = AdapterFolders(allowed=tuple(map(Path, config.allowed_lora_path)))
        self._config = config
        self.allows_runtime = config.takes_changes
        self._changes = ThreadPoolExecutor(1, "octavo-adapter-changes")
        """One at a time; each is whole, also when the client that asked for it has gone."""

    @property
    def is_on(self) -> bool:
        """Whether the engine takes adapters."""
        return self._engine.config.lora.enable_lora

    def start(self) -> None:
        """Load the operator's adapters; blocks. One that cannot be used is an error."""
        check_adapters(self._config, self._model_names, is_on=self.is_on)
        if not self.is_on:
            return
        self._engine.adapters.locate = self._locate
        for module in self._config.modules:
            self._replace(Served(module, AdapterFolders(allowed=None)))

    async def find(self, name: str) -> LoRARequest:
        """What to give the engine for requests of this name; it need not have been loaded."""
        if name not in self._served or self._engine.adapters.get(name) is None:
            await asyncio.to_thread(self._look_up, name)
        return LoRARequest(name)

    async def load(self, module: LoRAModule, *, in_place: bool) -> None:
        """Load an adapter that a request names; one that cannot be used changes nothing."""
        self._check_name(module.name)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._changes, self._load, module, in_place)

    async def unload(self, name: str) -> None:
        """Forget a name; requests that run with it go on. One that was looked up is so again."""
        await asyncio.get_running_loop().run_in_executor(self._changes, self._unload, name)

    async def listed(self) -> list[LoRAModule]:
        """All adapters that have names, each with its folder."""
        modules = {name: served.module for name, served in self._served.items()}
        if self.is_on:
            for name, folder in await asyncio.to_thread(self._looked_up):
                modules.setdefault(name, LoRAModule(name=name, path=folder))
        return [modules[name] for name in sorted(modules) if name not in self._model_names]

    def _load(self, module: LoRAModule, in_place: bool) -> None:
        if not in_place and (module.name in self._served or self._is_watched(module.name)):
            raise HttpError(
                409,
                f"the adapter {shown(module.name)} is there already; unload it first, choose "
                "another name, or give load_inplace",
                param="lora_name",
            )
        try:
            self._replace(Served(module, self._allowed))
        except AdapterError as error:
            error.param = "lora_path"
            raise

    def _unload(self, name: str) -> None:
        was_served = self._served.pop(name, None) is not None
        try:
            self._engine.adapters.unload(name)
        except UnknownAdapterError as error:
            if not was_served:
                raise HttpError(
                    404, f"no adapter {shown(name)} is loaded", param="lora_name",
                    code="model_not_found",
                ) from error  # fmt: skip

    def _is_watched(self, name: str) -> bool:
        try:
            self._library(self._watched).find(name)
        except UnknownAdapterError:
            return False
        return True

    def _look_up(self, name: str) -> None:
        """Forget what the engine has of a name that is not served if its folder has changed."""
        if name in self._served:
            self._locate(name)
            return
        seen = self._seen.get(name)
        is_there = self._engine.adapters.get(name) is not None
        if seen is not None and is_there and seen == Seen.now(seen.folder):
            return
        try:
            now = Seen.now(Path(self._locate(name).path or name))
        except UnknownAdapterError:
            if seen is not None:
                self._forget(name)
            raise
        if seen is not None and seen != now:
            self._forget(name)
        self._seen[name] = now

    def _forget(self, name: str) -> None:
        self._seen.pop(name, None)
        with suppress(UnknownAdapterError):
            self._engine.adapters.unload(name)

    def _locate(self, name: str) -> LoRARequest:
        """Raises an UnknownAdapterError for what is not served, and not by a resolver either."""
        served = self._served.get(name)
        if served is not None:
            try:
                return self._request(served)
            except UnknownAdapterError as error:
                raise HttpError(
                    404,
                    f"the folder of adapter {shown(name)} is gone, and host memory has not kept it "
                    "(max_cpu_loras)",
                    param="model",
                    code="model_not_found",
                ) from error
        if not is_name(name):
            raise UnknownAdapterError(f"no adapter {shown(name)}")
        return LoRARequest(name, lora_path=str(self._library(self._watched).find(name)))

    def _request(self, served: Served) -> LoRARequest:
        module = served.module
        folder = self._library(served.folders).find(module.path)
        return LoRARequest(
            module.name, lora_path=str(folder), base_model_name=module.base_model_name
        )

    def _replace(self, served: Served) -> None:
        adapters, name = self._engine.adapters, served.module.name
        request = self._request(served)
        before = self._served.get(name)
        self._served[name] = served  # first: a request that reads it meanwhile reads the new one
        try:
            adapters.release(adapters.load(request, replace=True))
        except BaseException:
            del self._served[name]
            if before is not None:
                self._served[name] = before
            raise

    def _looked_up(self) -> list[tuple[str, str]]:
        library = self._library(self._watched)
        found = []
        for name in library.names():
            try:
                found.append((name, str(library.find(name))))
            except AdapterError:
                continue  # gone meanwhile
        return found

    def _library(self, folders: AdapterFolders) -> AdapterLibrary:
        if folders not in self._libraries:
            made = AdapterLibrary(self._engine.host, folders, uses_hub=folders.allowed is None)
            self._libraries[folders] = made
        return self._libraries[folders]

    def _check_name(self, name: str) -> None:
        if name in self._model_names:
            raise HttpError(409, f"{shown(name)} is the model's own name", param="lora_name")
        if not is_name(name):
            raise HttpError(400, f"lora_name {NO_NAME}", param="lora_name")
