"""Adapters by name while others come and go: what is read, kept and let go, and when."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import pytest

from octavo import AsyncLLM, LoRARequest, SamplingParams
from octavo.adapters.loaded import LoadedAdapters
from octavo.config import EngineConfig, LoRAConfig, ModelConfig
from octavo.errors import AdapterError, UnknownAdapterError
from octavo.messages import AdapterFacts, AdapterHead, PackedAdapter
from octavo_registry import PluginHost

FACTS = AdapterFacts(linears={}, max_rank=8, dtype="float32")
SECONDS = 20


class Sink:
    """Notes what an engine would have."""

    def __init__(self) -> None:
        self.held: list[str] = []

    def add_adapter(self, adapter: PackedAdapter) -> None:
        self.held.append(adapter.head.content_hash)

    def remove_adapter(self, content_hash: str) -> None:
        self.held.remove(content_hash)


class Adapters(LoadedAdapters):
    """Reads nothing: an adapter's hash is its path. Reading may be held up."""

    def __init__(self, most: int = 2) -> None:
        config = EngineConfig(
            model=ModelConfig(model="org/base"),
            lora=LoRAConfig(enable_lora=True, max_cpu_loras=most),
        )
        self.sink = Sink()
        super().__init__(config, FACTS, PluginHost(), self.sink)
        self.read: list[LoRARequest] = []
        self.version = ""
        self.is_reading, self.may_read = threading.Event(), threading.Event()
        self.may_read.set()

    def _read(self, request: LoRARequest, path: str) -> PackedAdapter:
        self.is_reading.set()
        assert self.may_read.wait(SECONDS)
        self.read.append(request)
        content_hash = path + self.version
        head = AdapterHead(content_hash=content_hash, rank=1, dtype="float32", shapes={})
        return PackedAdapter(head, memoryview(b""))


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def load(adapters: LoadedAdapters, name: str, path: str | None = None) -> Any:
    return adapters.load(LoRARequest(name, lora_path=path))


def test_what_requests_are_made_with_stays_beyond_the_most_until_they_are_sent() -> None:
    adapters = Adapters(most=1)
    leases = [load(adapters, name, f"/{name}") for name in "abc"]
    assert adapters.sink.held == ["/a", "/b", "/c"]
    for lease in leases:
        adapters.release(lease)
    assert len(adapters.sink.held) == 1
    with pytest.raises(AdapterError, match=r"names 2 adapters, .*max_cpu_loras=1"):
        adapters.check_room("ab")


def test_a_name_is_read_again_as_it_was_given_first() -> None:
    adapters = Adapters(most=1)
    first = LoRARequest("a", lora_path="/a", base_model_name="org/other")
    for request in (first, LoRARequest("b", lora_path="/b"), LoRARequest("a")):
        adapters.release(adapters.load(request))
    assert adapters.read[2] == first


def test_a_name_stands_for_what_was_loaded_under_it_though_memory_has_let_go_of_it() -> None:
    adapters = Adapters(most=1)
    for name in "ab":
        adapters.release(load(adapters, name, f"/{name}"))
    adapters.version = "2"
    with pytest.raises(AdapterError, match="'a': its files have changed since it was loaded"):
        load(adapters, "a")
    with pytest.raises(AdapterError, match="'a' is loaded from /a, not from /other"):
        load(adapters, "a", "/other")
    assert adapters.sink.held == ["/b"]
    adapters.unload("a")
    adapters.release(load(adapters, "a", "/a"))
    adapters.release(adapters.load(LoRARequest("b", lora_path="/b"), replace=True))
    assert adapters.sink.held == ["/b2"]


def test_an_adapter_that_is_unloaded_while_it_is_read_is_gone_after(
    pool: ThreadPoolExecutor,
) -> None:
    adapters = Adapters()
    adapters.release(load(adapters, "a", "/a"))
    adapters.may_read.clear()
    adapters.is_reading.clear()
    reading = pool.submit(adapters.load, LoRARequest("a", lora_path="/new"), replace=True)
    assert adapters.is_reading.wait(SECONDS)
    unloading = pool.submit(adapters.unload, "a")
    assert not wait([unloading], 0.2).done
    adapters.may_read.set()
    lease = reading.result(SECONDS)
    unloading.result(SECONDS)
    assert adapters.get("a") is None
    assert adapters.sink.held == ["/new"]
    adapters.release(lease)
    assert adapters.sink.held == []


def test_where_names_are_located_none_is_looked_for_anywhere_else() -> None:
    adapters = Adapters(most=1)
    served = {"a": "/a", "b": "/b"}

    def locate(name: str) -> LoRARequest:
        if name not in served:
            raise UnknownAdapterError(name)
        return LoRARequest(name, lora_path=served[name])

    adapters.locate = locate
    for name in "ab":
        adapters.release(load(adapters, name))
    served["a"] = "/new"
    adapters.release(load(adapters, "a"))
    assert [request.path for request in adapters.read] == ["/a", "/b", "/new"]
    del served["b"]
    with pytest.raises(UnknownAdapterError):
        load(adapters, "b")


def test_a_request_that_is_left_while_its_adapter_is_read_holds_nothing() -> None:
    async def run(llm: AsyncLLM) -> None:
        adapters: Any = Adapters()
        adapters.may_read.clear()
        llm.adapters = adapters
        params = SamplingParams(max_tokens=1)
        stream = llm.generate("Hello", params, lora_request=LoRARequest("a", lora_path="/a"))
        task = asyncio.ensure_future(anext(stream))
        await asyncio.to_thread(adapters.is_reading.wait, SECONDS)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        adapters.may_read.set()
        async with asyncio.timeout(SECONDS):
            while (lease := adapters.get("a")) is None or lease.num_leases:
                await asyncio.sleep(0.01)

    llm = AsyncLLM("octavo/tiny", engine_process=False, num_blocks=128, num_threads=1)
    try:
        asyncio.run(run(llm))
    finally:
        llm.close()
