"""The adapters that requests of this process may name, and the engine was given.

Reading, checking and packing one takes as long as its file is large and belongs in a thread. What
the engine keeps in host memory is bounded here: of the adapters that no request is being made with,
the one used longest ago makes room, and is read again when its name comes up again: a name stands
for what was loaded under it, and files that have changed since are an error.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from octavo.config import EngineConfig
from octavo.errors import AdapterError, ConfigError, UnknownAdapterError
from octavo.messages import AdapterFacts, PackedAdapter
from octavo.model_folder import open_model
from octavo.params import LoRARequest
from octavo_registry import AdapterFolders, PluginHost

if TYPE_CHECKING:
    from octavo.adapters.library import AdapterLibrary
    from octavo_registry.adapters import Adapter


class AdapterSink(Protocol):
    """An engine's client, or what stands before one."""

    def add_adapter(self, adapter: PackedAdapter) -> None:
        """Let requests that are sent later name it."""
        ...

    def remove_adapter(self, content_hash: str) -> None:
        """Take it back."""
        ...


@dataclass(frozen=True, slots=True)
class KnownAdapter:
    """What a name stands for."""

    request: LoRARequest
    """With its path."""
    content_hash: str


@dataclass(slots=True)
class LoadedAdapter:
    """One that the engine has."""

    name: str
    content_hash: str
    rank: int
    num_leases: int = 0
    """Requests that are being made with it."""
    is_gone: bool = False
    """Nobody can name it any more; the engine hears of it when the leases have ended."""


class LoadedAdapters:
    """The adapters of one engine, for any thread."""

    def __init__(
        self,
        config: EngineConfig,
        facts: AdapterFacts | None,
        host: PluginHost,
        sink: AdapterSink,
        *,
        before: LoadedAdapters | None = None,
    ) -> None:
        """``before`` are those of an engine that has ended: what had a name still has it."""
        self.known: dict[str, KnownAdapter] = {} if before is None else dict(before.known)
        """What was loaded, by name, whether the engine has it now or had it."""
        self.num_requests: Counter[str] = Counter(
            {"": 0} if before is None else before.num_requests
        )
        """Counts by known name; "" are requests without an adapter, as an ``AsyncLLM`` counts."""
        self.locate: Callable[[str], LoRARequest] | None = None if before is None else before.locate
        """Says with its path what a request names without one, where not every path may be read."""
        self._config = config
        self._facts = facts
        self._host = host
        self._sink = sink
        self._library: AdapterLibrary | None = None
        self._loaded: OrderedDict[str, LoadedAdapter] = OrderedDict()
        """Least recently used first."""
        self._lock = threading.RLock()
        self._reading = threading.Lock()
        """Held to read one; requests for others go on."""

    def get(self, name: str) -> LoadedAdapter | None:
        """What the engine has under this name."""
        return self._loaded.get(name)

    def check_room(self, names: Collection[str]) -> None:
        """Raise for more than host memory may hold, where one call keeps them all."""
        most = self._config.lora.num_host_adapters
        if len(names) > most:
            raise AdapterError(
                f"lora_request names {len(names)} adapters, and host memory holds "
                f"max_cpu_loras={most}; raise it, or give fewer in one call"
            )

    def lease(self, request: LoRARequest) -> LoadedAdapter | None:
        """Keep what is there until ``release``; None where it must be loaded first."""
        self._checked_facts(LoRARequest.checked(request).name)
        with self._lock:
            known = self.known.get(request.name)
            if known is not None and request.path not in (None, known.request.path):
                raise AdapterError(
                    f"adapter {request.name!r} is loaded from {known.request.path}, not from "
                    f"{request.path}; unload it first, or choose another name"
                )
            loaded = self._loaded.get(request.name)
            if loaded is None:
                return None
            self._loaded.move_to_end(request.name)
            loaded.num_leases += 1
            self.num_requests[request.name] += 1
            return loaded

    def load(self, request: LoRARequest, *, replace: bool = False) -> LoadedAdapter:
        """Lease it; one that is not there is read, checked and sent to the engine.

        To ``replace`` is to read it anyway; requests that run with what had its name go on.
        """
        with self._reading:
            loaded = None if replace else self.lease(request)
            if loaded is not None:
                return loaded
            request, path = self._located(request)
            try:
                packed = self._read(request, path)
            except UnknownAdapterError:
                raise
            except AdapterError as error:
                raise AdapterError(f"adapter {request.name!r}: {error}") from error
            head = packed.head
            if not replace:
                self._check_unchanged(request, head.content_hash)
            loaded = LoadedAdapter(request.name, head.content_hash, head.rank, num_leases=1)
            with self._lock:
                if request.name in self._loaded:
                    self._drop(self._loaded[request.name])
                self._drop_idle(self._config.lora.num_host_adapters - 1)
                self._sink.add_adapter(packed)
                self.known[request.name] = KnownAdapter(request, head.content_hash)
                self._loaded[request.name] = loaded
                self.num_requests[request.name] += not replace
            return loaded

    def release(self, loaded: LoadedAdapter) -> None:
        """The request is on its way to the engine, or will never be."""
        with self._lock:
            loaded.num_leases -= 1
            if loaded.is_gone and not loaded.num_leases:
                self._sink.remove_adapter(loaded.content_hash)
            self._drop_idle(self._config.lora.num_host_adapters)

    @contextmanager
    def leased(self, request: LoRARequest | None) -> Iterator[str]:
        """Give the content hash for a request that is sent meanwhile; "" without an adapter."""
        if request is None:
            yield ""
            return
        loaded = self.lease(request) or self.load(request)
        try:
            yield loaded.content_hash
        finally:
            self.release(loaded)

    def unload(self, name: str) -> None:
        """Forget a name; requests that run with it go on. What is being read is waited for."""
        with self._reading, self._lock:
            if self.known.pop(name, None) is None:
                raise UnknownAdapterError(f"no adapter {name!r} is loaded")
            self.num_requests.pop(name, None)
            loaded = self._loaded.get(name)
            if loaded is not None:
                self._drop(loaded)

    def _checked_facts(self, name: str) -> AdapterFacts:
        if self._facts is None:
            raise ConfigError(
                f"lora_request={name!r}: the engine takes no adapters; set enable_lora=True"
            )
        return self._facts

    def _located(self, request: LoRARequest) -> tuple[LoRARequest, str]:
        """The request with its path, and that."""
        if request.path is None:
            if self.locate is not None:
                request = self.locate(request.name)
            else:
                known = self.known.get(request.name)
                request = request if known is None else known.request
        path = request.path or request.name
        return replace(request, lora_path=path), path

    def _check_unchanged(self, request: LoRARequest, content_hash: str) -> None:
        known = self.known.get(request.name)
        if known is None or known.request.path != request.path:
            return
        if known.content_hash != content_hash:
            raise AdapterError(
                f"adapter {request.name!r}: its files have changed since it was loaded, and host "
                "memory has not kept it (max_cpu_loras); unload it first, or choose another name"
            )

    def _read(self, request: LoRARequest, path: str) -> PackedAdapter:
        from octavo.adapters.base_weights import check_base_weights
        from octavo.adapters.check import check_adapter
        from octavo.adapters.packed import pack
        from octavo.messages import LinearSize
        from octavo.weights.checkpoint import open_checkpoint

        facts = self._checked_facts(request.name)
        names = (self._config.model.model, request.base_model_name)
        adapter = check_adapter(
            self._adapter(path),
            {name: LinearSize(*size) for name, size in facts.linears.items()},
            model_names=[name for name in names if name and not Path(name).exists()],
            max_rank=facts.max_rank,
        )
        if adapter.base_weights and self._config.model.load_format != "dummy":
            folder = open_model(self._config.model, self._host)
            check_base_weights(adapter, open_checkpoint(folder.path))
        return pack(adapter, facts.dtype)

    def _adapter(self, path: str) -> Adapter:
        """An error of its files names them in its folder: where that is, clients need not know."""
        from octavo.adapters.library import AdapterLibrary

        if self._library is None:
            self._library = AdapterLibrary(self._host, AdapterFolders(allowed=None), uses_hub=True)
        folder = self._library.find(path)
        try:
            return self._library.read(folder)
        except AdapterError as error:
            text = str(error).replace(f"{folder}/", "").replace(str(folder), "its folder")
            raise AdapterError(text) from error

    def _drop_idle(self, most: int) -> None:
        """Keep so many at most, and those that requests are being made with whatever their number.

        A request holds one for the moments until it is sent, so that few are there beyond the most.
        """
        for loaded in [each for each in self._loaded.values() if not each.num_leases]:
            if len(self._loaded) > most:
                self._drop(loaded)

    def _drop(self, loaded: LoadedAdapter) -> None:
        del self._loaded[loaded.name]
        loaded.is_gone = True
        if not loaded.num_leases:
            self._sink.remove_adapter(loaded.content_hash)
