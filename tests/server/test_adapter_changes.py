"""The adapters that a server has, changed by requests that do not stay."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from octavo.config import LoRAConfig
from octavo.config.server import AdapterConfig, LoRAModule
from octavo.params import LoRARequest
from octavo.server.adapters import ServedAdapters
from small_models import HOST

SECONDS = 20


def test_a_change_is_whole_though_the_client_that_asked_for_it_leaves(tmp_path: Path) -> None:
    is_reading, may_read, is_read = threading.Event(), threading.Event(), threading.Event()

    def read(request: LoRARequest, *, replace: bool) -> LoRARequest:
        is_reading.set()
        assert may_read.wait(SECONDS)
        return request

    adapters = SimpleNamespace(load=read, release=lambda loaded: is_read.set())
    config = SimpleNamespace(lora=LoRAConfig(enable_lora=True))
    engine: Any = SimpleNamespace(config=config, host=HOST, adapters=adapters)
    served = ServedAdapters(engine, AdapterConfig(allowed_lora_path=(str(tmp_path),)), ["base"])
    module = LoRAModule(name="a", path=str(tmp_path))

    async def leave() -> None:
        task = asyncio.ensure_future(served.load(module, in_place=False))
        await asyncio.to_thread(is_reading.wait, SECONDS)
        task.cancel()
        await asyncio.wait([task])
        may_read.set()
        await asyncio.to_thread(is_read.wait, SECONDS)
        assert await served.listed() == [module]

    asyncio.run(leave())
