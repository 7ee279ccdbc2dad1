"""The adapters that requests of this process may name, and the engine was given.

Reading, checking and packing one takes as long as its file is large and belongs in a thread. What
the engine keeps in host memory is bounded here: of the adapters that no request is being made with,
the one used longest ago makes room, and is read again when its name comes up again.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from octavo.config import EngineConfig, open_model
from octavo.engine.messages import AdapterFacts, PackedAdapter
from octavo.errors import AdapterError, ConfigError, UnknownAdapterError
from octavo.params import LoRARequest
from octavo_registry import AdapterFolders, PluginHost

if TYPE_CHECKING:
    from octavo.adapters.library import AdapterLibrary


class AdapterSink(Protocol):
    """An engine's client, or what stands before one."""

    def add_adapter(self, adapter: PackedAdapter) -> None:
        """Let requests that are sent later name it."""
        ...

    def remove_adapter(self, content_hash: str) -> None:
        """Take it back."""
        ...


@dataclass(slots=True)
class LoadedAdapter:
    """One that the engine has."""

    name: str
    path: str
    """As given, or the name."""
    content_hash: str
    rank: int
    num_leases: int = 0
    """Requests that are being made with it."""
    is_gone: bool = False
    """Nobody can name it any more; the engine hears of it when the leases have ended."""


class LoadedAdapters:
    """Of one engine; for any thread."""

    def __init__(
        self,
        config: EngineConfig,
        facts: AdapterFacts | None,
        host: PluginHost,
        sink: AdapterSink,
        *,
        before: LoadedAdapters | None = None,
    ) -> None:
        """What was known ``before``, of an engine that has ended, stays known."""
        self.paths: dict[str, str] = {} if before is None else dict(before.paths)
        """By name, whether the engine has them now or had them."""
        self.looks_up_names: bool = before is None or before.looks_up_names
        """Whether a name that is not known may be a path: not where clients give names."""
        self.num_requests: Counter[str] = Counter({"": 0})
        """By name that is known; "" are those without an adapter, as an ``AsyncLLM`` counts."""
        self._config = config
        self._facts = facts
        self._host = host
        self._sink = sink
        self._library: AdapterLibrary | None = None
        self._loaded: OrderedDict[str, LoadedAdapter] = OrderedDict()
        """Least recently used first."""
        self._lock = threading.RLock()
        self._lease_ended = threading.Condition(self._lock)
        self._reading = threading.Lock()
        """Held to read one; requests for others go on."""

    def get(self, name: str) -> LoadedAdapter | None:
        """What the engine has under this name."""
        return self._loaded.get(name)

    def lease(self, request: LoRARequest) -> LoadedAdapter | None:
        """Keep what is there until ``release``; None where it must be loaded first."""
        self._checked_facts(request.name)
        with self._lock:
            loaded = self._loaded.get(request.name)
            if loaded is None:
                return None
            if request.path not in (None, loaded.path):
                raise AdapterError(
                    f"adapter {request.name!r} is loaded from {loaded.path}, not from "
                    f"{request.path}; unload it first, or choose another name"
                )
            self._loaded.move_to_end(request.name)
            loaded.num_leases += 1
            self.num_requests[request.name] += 1
            return loaded

    def load(
        self, request: LoRARequest, *, replace: bool = False, waits: bool = True
    ) -> LoadedAdapter:
        """Lease it; one that is not there is read, checked and sent to the engine.

        To ``replace`` is to read it anyway; requests that run with what had its name go on. It
        ``waits`` for a place in host memory while others' requests are being made with all.
        """
        with self._reading:
            loaded = None if replace else self.lease(request)
            if loaded is not None:
                return loaded
            known = self.paths.get(request.name)
            path = request.path or known or (request.name if self.looks_up_names else None)
            if path is None:
                raise _unloaded(request.name)
            packed = self._read(request, path)
            head = packed.head
            loaded = LoadedAdapter(request.name, path, head.content_hash, head.rank, num_leases=1)
            with self._lock:
                if request.name in self._loaded:
                    self._drop(self._loaded[request.name])
                self._make_room(waits)
                if known is not None and request.name not in self.paths:
                    raise _unloaded(request.name)  # while it was read again
                self._sink.add_adapter(packed)
                self.paths[request.name] = path
                self._loaded[request.name] = loaded
                self.num_requests[request.name] += not replace
            return loaded

    def release(self, loaded: LoadedAdapter) -> None:
        """The request is on its way to the engine, or will never be."""
        with self._lock:
            loaded.num_leases -= 1
            self._lease_ended.notify_all()
            if loaded.is_gone and not loaded.num_leases:
                self._sink.remove_adapter(loaded.content_hash)

    @contextmanager
    def leased(self, request: LoRARequest | None) -> Iterator[str]:
        """Give the content hash for a request that is sent meanwhile; "" without an adapter."""
        if request is None:
            yield ""
            return
        loaded = self.lease(request) or self.load(request, waits=False)
        try:
            yield loaded.content_hash
        finally:
            self.release(loaded)

    def unload(self, name: str) -> None:
        """Forget a name; requests that run with it go on."""
        with self._lock:
            if self.paths.pop(name, None) is None:
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

    def _read(self, request: LoRARequest, path: str) -> PackedAdapter:
        from octavo.adapters.base_weights import check_base_weights
        from octavo.adapters.check import LinearSize, check_adapter
        from octavo.adapters.library import AdapterLibrary
        from octavo.adapters.packed import pack
        from octavo.weights.checkpoint import open_checkpoint

        facts = self._checked_facts(request.name)
        if self._library is None:
            anywhere = AdapterFolders(allowed=None)
            self._library = AdapterLibrary(self._host, anywhere, uses_hub=True)
        names = (self._config.model.model, request.base_model_name)
        adapter = check_adapter(
            self._library.read(self._library.find(path)),
            {name: LinearSize(*size) for name, size in facts.linears.items()},
            model_names=[name for name in names if name and not Path(name).exists()],
            max_rank=facts.max_rank,
        )
        if adapter.base_weights and self._config.model.load_format != "dummy":
            folder = open_model(self._config.model, self._host)
            check_base_weights(adapter, open_checkpoint(folder.path))
        return pack(adapter, facts.dtype)

    def _make_room(self, waits: bool) -> None:
        most = self._config.lora.num_host_adapters
        while len(self._loaded) >= most:
            idle = next((each for each in self._loaded.values() if not each.num_leases), None)
            if idle is not None:
                self._drop(idle)
            elif waits:
                self._lease_ended.wait()
            else:
                raise AdapterError(
                    f"requests are being made with all of max_cpu_loras={most} adapters; raise it, "
                    "or use fewer at a time"
                )

    def _drop(self, loaded: LoadedAdapter) -> None:
        del self._loaded[loaded.name]
        loaded.is_gone = True
        if not loaded.num_leases:
            self._sink.remove_adapter(loaded.content_hash)


def _unloaded(name: str) -> UnknownAdapterError:
    return UnknownAdapterError(f"adapter {name!r} was unloaded")
