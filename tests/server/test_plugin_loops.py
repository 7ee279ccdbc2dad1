"""Event loops of plugins' routes, and what is told of one that is held."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from octavo.server.http.plugin_loops import PluginLoop
from octavo.server.processes import loop_watch
from octavo.server.processes.loop_watch import LoopWatch
from octavo_registry import PluginHost

HOLDER = """
OCTAVO_API = "1"


def hold(event):
    helper(event)


def helper(event):
    event.wait()
"""
GONE = {"type": "http.disconnect"}


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PluginHost]:
    (tmp_path / "holding_plugin.py").write_text(HOLDER)
    monkeypatch.syspath_prepend(tmp_path)
    yield PluginHost.discover(plugins=["holding_plugin"])
    sys.modules.pop("holding_plugin", None)


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """One that runs in a thread; closed behind the test, which ends those that watch it."""
    made = asyncio.new_event_loop()
    thread = threading.Thread(target=made.run_forever, daemon=True)
    thread.start()
    yield made
    made.call_soon_threadsafe(made.stop)
    thread.join(30)
    made.close()


async def receive() -> dict[str, Any]:
    return GONE


async def test_an_app_receives_and_sends_on_its_servers_loop_and_runs_on_its_own(host) -> None:
    loop, here = PluginLoop("holding_plugin", host), threading.get_ident()
    seen: list[Any] = []

    async def send(message: Any) -> None:
        seen.append((message, threading.get_ident()))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(threading.get_ident())
        await send({"got": await receive(), "path": scope["path"]})

    await loop.run(app, {"path": "/a"}, receive, send, "GET /a")
    assert seen[0] != here
    assert seen[1:] == [({"got": GONE, "path": "/a"}, here)]


async def test_errors_of_either_side_reach_the_other(host) -> None:
    loop = PluginLoop("holding_plugin", host)
    caught: list[BaseException] = []

    async def gone(message: Any) -> None:
        raise ConnectionError("gone")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        try:
            await send({})
        except ConnectionError as error:
            caught.append(error)
        raise KeyError("broken")

    with pytest.raises(KeyError, match="broken"):
        await loop.run(app, {}, receive, gone, "GET /a")
    assert [str(each) for each in caught] == ["gone"]


@pytest.mark.parametrize("way", ["exits", "stops"])
async def test_an_app_that_ends_its_loop_hangs_no_other(host, way) -> None:
    loop = PluginLoop("holding_plugin", host)

    async def ending(scope: Any, receive: Any, send: Any) -> None:
        if way == "exits":
            raise SystemExit(3)
        asyncio.get_running_loop().stop()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"got": await receive()})

    seen: list[Any] = []

    async def send(message: Any) -> None:
        seen.append(message)

    async with asyncio.timeout(30):
        for _ in range(2):
            with pytest.raises(SystemExit) if way == "exits" else nullcontext():
                await loop.run(ending, {}, receive, send, "GET /a")
            await loop.run(app, {}, receive, send, "GET /a")
    assert seen == [{"got": GONE}] * 2


async def test_an_app_that_cancels_itself_has_failed(host) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise asyncio.CancelledError

    with pytest.raises(RuntimeError, match="cancelled"):
        await PluginLoop("holding_plugin", host).run(app, {}, receive, receive, "GET /a")  # type: ignore[arg-type]


async def test_an_app_whose_client_leaves_is_cancelled_where_it_waits(host) -> None:
    loop = PluginLoop("holding_plugin", host)
    begun, ended = threading.Event(), threading.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    task = asyncio.create_task(loop.run(app, {}, receive, receive, "GET /a"))  # type: ignore[arg-type]
    assert await asyncio.to_thread(begun.wait, 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(ended.wait, 30)


@pytest.mark.parametrize("is_route", [False, True])
def test_who_holds_a_loop_is_told_and_when_it_goes_on(
    is_route: bool,
    host: PluginHost,
    loop: asyncio.AbstractEventLoop,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop_watch, "HELD_SECONDS", 0.1)
    monkeypatch.setattr(loop_watch, "LOOK_SECONDS", 0.01)
    from holding_plugin import hold

    async def app(scope: Any, receive: Any, send: Any) -> None:
        hold(event)

    async def asked() -> None:
        plugin_loop = PluginLoop("holding_plugin", host)
        plugin_loop._loop = loop
        await plugin_loop.run(app, {}, receive, receive, "GET /hold")  # type: ignore[arg-type]

    event = threading.Event()
    with caplog.at_level(logging.WARNING):
        LoopWatch(loop, host, "the loop")
        if is_route:
            threading.Thread(target=asyncio.run, args=(asked(),), daemon=True).start()
        else:
            loop.call_soon_threadsafe(hold, event)
        until = time.monotonic() + 30
        while "is held" not in caplog.text and time.monotonic() < until:
            time.sleep(0.01)
        event.set()
        while "goes on" not in caplog.text and time.monotonic() < until:
            time.sleep(0.01)
    within = " in GET /hold" if is_route else ""
    held = f"the loop is held by plugin 'holding_plugin'{within} ("
    assert held in caplog.text
    assert "holding_plugin.py:10, helper): all on it wait" in caplog.text
    assert "the loop goes on, after " in caplog.text


def test_of_a_loop_that_no_plugin_holds_nothing_is_told(
    host: PluginHost,
    loop: asyncio.AbstractEventLoop,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop_watch, "HELD_SECONDS", 0.02)
    monkeypatch.setattr(loop_watch, "LOOK_SECONDS", 0.01)
    held = threading.Event()
    with caplog.at_level(logging.WARNING):
        watch = LoopWatch(loop, host, "the loop")
        told = threading.Event()
        monkeypatch.setattr(
            watch, "_tell", lambda *args: (LoopWatch._tell(watch, *args), told.set())
        )
        loop.call_soon_threadsafe(held.wait, 0.2)
        assert told.wait(30)
    assert "the loop" not in caplog.text


def test_plugins_of_others_are_told_from_octavo_s_own(host: PluginHost) -> None:
    ours = [record.name for record in host.plugins if record.name != "holding_plugin"]
    assert ours
    assert not any(map(host.is_foreign, (*ours, "octavo")))
    assert host.is_foreign("holding_plugin")
