"""When the HTTP side of a server has begun, and when it has ended."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any
from unittest.mock import MagicMock

import httpx
import pytest
import uvicorn

from octavo.config.server import ListenConfig, ServerConfig
from octavo.errors import OctavoError
from octavo.server.http.listening import bind
from octavo.server.processes import http_thread
from octavo.server.processes.http_thread import HttpThread, Service
from octavo_registry import PluginHost
from octavo_registry.routes import Endpoint
from server_faults import connect, is_closed, request_bytes, until

RELEASED = threading.Event()


async def works(scope: Any, receive: Any, send: Any) -> None:
    await asyncio.to_thread(RELEASED.wait, 60)


class Group:
    def __init__(self, server: object) -> None:
        pass

    def endpoints(self) -> list[Endpoint]:
        return [Endpoint(method="GET", path="/works", app=works)]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(http_thread, "_calm_collector", lambda: None)
    interval = sys.getswitchinterval()
    made: list[HttpThread] = []
    RELEASED.clear()

    def start() -> tuple[HttpThread, str]:
        (listener,) = bind(ListenConfig(port=0))
        host = PluginHost()
        host.routes.add("given", f"{__name__}:Group")
        engine: Any = MagicMock(host=host, max_model_len=100)
        port = listener.getsockname()[1]
        made.append(
            HttpThread(engine, Service(config=ServerConfig(), model_names=("m",)), listener)
        )
        return made[-1], f"http://127.0.0.1:{port}"

    yield start
    RELEASED.set()
    for http in made:
        http.cut()
        until(lambda http=http: not http.is_running)
    sys.setswitchinterval(interval)


def test_it_is_made_when_it_answers(start, monkeypatch) -> None:
    startup = uvicorn.Server.startup

    async def slow(self: uvicorn.Server, sockets: Any = None) -> None:
        await asyncio.sleep(0.3)
        await startup(self, sockets)
        began.append(time.monotonic())

    began: list[float] = []
    monkeypatch.setattr(uvicorn.Server, "startup", slow)
    _, url = start()
    assert began
    assert httpx.get(f"{url}/version", timeout=60).status_code == 200


def test_one_that_cannot_answer_is_not_made(start, monkeypatch) -> None:
    async def fail(self: uvicorn.Server, sockets: Any = None) -> None:
        raise OSError("no descriptor is left")

    monkeypatch.setattr(uvicorn.Server, "startup", fail)
    with pytest.raises(OctavoError, match=r"has failed: OSError: no descriptor is left"):
        start()


def test_one_that_exits_in_its_start_is_not_made(start, monkeypatch) -> None:
    async def leave(self: uvicorn.Server, sockets: Any = None) -> None:
        sys.exit(3)  # as uvicorn does where it cannot listen

    monkeypatch.setattr(uvicorn.Server, "startup", leave)
    with pytest.raises(OctavoError, match=r"has failed: SystemExit: 3"):
        start()


def test_one_that_ends_unasked_has_failed(start, monkeypatch) -> None:
    ends = threading.Event()

    async def tick(self: uvicorn.Server, counter: int) -> bool:
        return ends.is_set()

    monkeypatch.setattr(uvicorn.Server, "on_tick", tick)
    http, _ = start()
    http.check()
    ends.set()
    until(lambda: not http.is_running)
    with pytest.raises(OctavoError, match="without being asked"):
        http.check()
    assert http.code == 1


def test_one_that_was_asked_to_end_has_not_failed(start) -> None:
    http, _ = start()
    http.drain()
    until(lambda: not http.is_running)
    http.check()
    assert http.code == 0


def test_a_thread_that_still_works_is_not_waited_for(start) -> None:
    http, url = start()
    with connect(url) as client:
        client.sendall(request_bytes("/works"))
        until(lambda: httpx.get(f"{url}/load", timeout=60).json() == {"server_load": 1})
        http.cut()
        assert is_closed(client)
    until(lambda: not http.is_running)
    assert not RELEASED.is_set()
    assert http.code == 1
