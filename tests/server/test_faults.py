"""Clients that leave, engines that die, plugins that misbehave: docs/reliability.md, as tests."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from live_server import FLAGS, LiveServer, running_server
from server_faults import (
    body,
    children,
    connect,
    counts,
    engine_of,
    error_of,
    events,
    is_closed,
    is_free,
    is_readable,
    load,
    long_body,
    named,
    request_bytes,
    stop,
    until,
)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    flags = ("--max-num-seqs", "2", "--max-num-batched-tokens", "2")
    flags += ("--no-enable-prefix-caching", "--send-timeout-seconds", "2")
    with running_server(tmp_path_factory.mktemp("faults") / "log", *flags) as server:
        yield server


TRIES = 3
"""A machine with other work may be late once."""
STAGES = {
    "in decode, streaming": long_body(max_tokens=900, stream=True),
    "in decode": long_body(max_tokens=900),
    "n > 1": long_body(max_tokens=900, n=2),
    "many prompts": long_body(max_tokens=900, prompt=["a", "b", "c"]),
    "in the prefill of a long prompt": long_body(prompt=[5] * 900, max_tokens=100),
    "in prefill, streaming": long_body(prompt=[5] * 900, max_tokens=100, stream=True),
}


def seconds_to_free(server: LiveServer, stage: str) -> float:
    """Infinite where this process was so late that the stage was over."""
    with connect(server.url) as client:
        client.sendall(request_bytes("/v1/completions", STAGES[stage]))
        until(lambda: counts(server)[0] > 0 or is_readable(client))
        time.sleep(0.1)
        is_in_stage = counts(server)[2] > 0
        if "prefill" in stage:
            is_in_stage &= not is_readable(client)  # nothing has been answered
    seconds = until(lambda: is_free(server))
    return seconds if is_in_stage else math.inf


@pytest.mark.parametrize("stage", STAGES)
def test_a_client_that_leaves_frees_its_blocks_within_a_second(live, stage) -> None:
    assert any(seconds_to_free(live, stage) < 1 for _ in range(TRIES))


def test_a_client_that_leaves_in_the_queue_or_while_it_sends_leaves_nothing(live) -> None:
    with connect(live.url) as first, connect(live.url) as second, connect(live.url) as queued:
        for client in (first, second):
            client.sendall(request_bytes("/v1/completions", long_body()))
        until(lambda: counts(live)[0] == 2)
        queued.sendall(request_bytes("/v1/completions", long_body()))
        until(lambda: counts(live)[1] == 1)
        queued.close()
        until(lambda: counts(live)[1] == 0)
    with connect(live.url) as client:
        client.sendall(request_bytes("/v1/completions", long_body())[:-10])
        time.sleep(0.1)
    until(lambda: is_free(live))
    until(lambda: load(live) == 0)


def test_a_client_that_leaves_with_a_second_request_behind_the_first_is_seen_to_leave(live) -> None:
    failures = live.log.read_text().count("a request failed")
    with connect(live.url) as client:
        client.sendall(request_bytes("/v1/completions", long_body(stream=True)))
        until(lambda: counts(live)[0] > 0)
        client.sendall(request_bytes("/health"))
        time.sleep(0.1)
    until(lambda: is_free(live))
    until(lambda: load(live) == 0)
    assert live.log.read_text().count("a request failed") == failures


@pytest.mark.slow
def test_a_client_that_reads_nothing_is_let_go_and_slows_no_other(live) -> None:
    asked = request_bytes("/openapi.json") * 1000  # some 100 KB each: no buffer holds them
    clients = [connect(live.url, receive_bytes=4096) for _ in range(8)]
    for client in clients:
        client.sendall(asked)
    until(lambda: load(live) > 0)
    assert live.post("/v1/completions", body()).status_code == 200
    until(lambda: load(live) == 0)
    for client in clients:
        assert is_closed(client)
        client.close()


def test_an_engine_that_is_killed_ends_streams_and_the_server_and_is_the_last_line(
    tmp_path: Path,
) -> None:
    with running_server(tmp_path / "log") as server, server.client() as http:
        with http.stream("POST", "/v1/completions", json=long_body(stream=True)) as reply:
            pieces = events(reply)
            next(pieces)
            began = time.monotonic()
            os.kill(engine_of(server.process.pid), signal.SIGKILL)
            (*_, last) = pieces
            assert time.monotonic() - began < 20
        assert last["error"]["type"] == "service_unavailable_error"
        assert server.process.wait(60) == 1
        lines = server.log.read_text().splitlines()
        assert lines[-1].startswith("octavo: error: engine process")
        assert "was killed by SIGKILL" in lines[-1]
        assert [" 503 " in line for line in lines if "POST /v1/completions" in line] == [True]


@pytest.mark.slow
def test_an_engine_that_dies_is_restarted_once(tmp_path: Path) -> None:
    flags = ("--on-engine-death", "restart")
    with running_server(tmp_path / "log", *flags) as server, server.client() as http:
        wanted = http.post("/v1/completions", json=body()).json()["choices"]
        os.kill(engine_of(server.process.pid), signal.SIGKILL)
        until(lambda: http.get("/health").status_code == 503)
        refused = http.post("/v1/completions", json=body())
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        until(lambda: http.get("/health").status_code == 200)
        assert http.post("/v1/completions", json=body()).json()["choices"] == wanted
        os.kill(engine_of(server.process.pid), signal.SIGKILL)
        assert server.process.wait(60) == 1


@pytest.mark.slow
def test_an_engine_that_hangs_is_seen_and_killed(tmp_path: Path) -> None:
    with running_server(tmp_path / "log", "--hang-seconds", "2") as server, server.client() as http:
        with http.stream("POST", "/v1/completions", json=long_body(stream=True)) as reply:
            pieces = events(reply)
            next(pieces)
            stop(engine_of(server.process.pid))
            until(lambda: http.get("/health").status_code == 503)
            began = time.monotonic()
            (*_, last) = pieces
            assert time.monotonic() - began < 20
        assert last["error"]["type"] == "service_unavailable_error"
        assert server.process.wait(60) == 1
        assert "made no step" in server.log.read_text().splitlines()[-1]


@pytest.mark.slow
def test_a_signal_lets_what_is_in_flight_complete(tmp_path: Path) -> None:
    with running_server(tmp_path / "log") as server, server.client() as http:
        asks = [long_body(stream=stream, seed=i)
                for i, stream in enumerate([True, False] * 4)]  # fmt: skip
        with ThreadPoolExecutor(len(asks)) as pool:
            replies = [pool.submit(http.post, "/v1/completions", json=ask) for ask in asks]
            until(lambda: http.get("/load").json()["server_load"] == len(asks))
            server.process.terminate()
            until(lambda: http.get("/health").status_code == 503)
            refused = http.post("/v1/completions", json=body())
            assert refused.status_code == 503
            assert {"retry-after", "connection"} <= set(refused.headers)
            for ask, reply in zip(asks, [reply.result() for reply in replies], strict=True):
                assert reply.status_code == 200
                text = reply.text
                assert text.endswith("data: [DONE]\n\n") if ask["stream"] else reply.json()["usage"]
                assert '"finish_reason":"length"' in text
        assert server.process.wait(60) == 0


@pytest.mark.slow
def test_a_second_ctrl_c_cuts_off_what_is_in_flight(tmp_path, monkeypatch) -> None:
    (tmp_path / "odd_routes.py").write_text(PLUGIN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with (
        running_server(tmp_path / "log", "--plugin", "odd_routes") as server,
        connect(server.url) as client,
        connect(server.url) as other,
    ):
        other.sendall(request_bytes("/odd/works"))
        client.sendall(request_bytes("/v1/completions", long_body(n=16, stream=True)))
        until(lambda: counts(server)[0] > 0)
        assert client.recv(100).startswith(b"HTTP/1.1 200")
        left = children(server.process.pid)
        server.process.send_signal(signal.SIGINT)
        until(lambda: "shutting down: 2 requests in flight" in server.log.read_text())
        assert server.process.poll() is None
        server.process.send_signal(signal.SIGINT)
        assert is_closed(client)
        assert server.process.wait(60) == 1
        assert not any(Path(f"/proc/{child}").exists() for child in left)
        lines = server.log.read_text().splitlines()
    assert any(line.endswith("cut off: 2 requests") for line in lines)
    (logged,) = [line for line in lines if "POST /v1/completions" in line]
    assert " 503 " in logged  # the head had said 200
    assert not [line for line in lines if "Traceback" in line or " ERROR " in line]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "flags"), [(signal.SIGINT, ()), (signal.SIGTERM, ("--api-workers", "2"))]
)
def test_a_signal_while_the_model_loads_ends_all_without_a_word(tmp_path, flags, number) -> None:
    command = [sys.executable, "-m", "octavo", "serve", "octavo/tiny", *FLAGS, *flags]
    log = tmp_path / "log"
    with log.open("wb") as file, subprocess.Popen(command, stdout=file, stderr=file) as server:
        try:
            until(lambda: named(server.pid, "octavo.engine"))
            engine = engine_of(server.pid)
            time.sleep(0.5)
            server.send_signal(number)
            assert server.wait(60) == 0
            assert not Path(f"/proc/{engine}").exists()
        finally:
            server.kill()
    assert log.read_text() == ""


@pytest.mark.slow
def test_a_signal_while_the_engine_restarts_ends_all_at_once(tmp_path: Path) -> None:
    with running_server(tmp_path / "log", "--on-engine-death", "restart") as server:
        first = engine_of(server.process.pid)
        os.kill(first, signal.SIGKILL)
        until(lambda: first not in (now := named(server.process.pid, "octavo.engine")) and now)
        second = engine_of(server.process.pid)
        server.process.terminate()
        assert server.process.wait(60) == 0
        # One that was just being started ends by itself, as its standard input does.
        until(lambda: not Path(f"/proc/{second}").exists())
        assert "another engine is started" in server.log.read_text().splitlines()[-1]


PLUGIN = """
import asyncio
import time
from octavo_registry import hookimpl
from octavo_registry.routes import Endpoint

OCTAVO_API = "1"
START = {"type": "http.response.start", "status": 200, "headers": []}

@hookimpl
def register_routes(routes):
    routes.add("odd", "odd_routes:Group")

async def raises(scope, receive, send):
    raise ValueError("a secret\\nFORGED LINE")

async def silent(scope, receive, send):
    return None

async def wrong_status(scope, receive, send):
    await send({**START, "status": "200"})

async def wrong_header(scope, receive, send):
    await send({**START, "headers": [(b"x", b"a\\r\\nb: c")]})

async def half(scope, receive, send):
    await send(START)
    await send({"type": "http.response.body", "body": b"half", "more_body": True})
    raise ValueError("later")

async def hangs(scope, receive, send):
    await asyncio.Event().wait()

async def works(scope, receive, send):
    await asyncio.to_thread(time.sleep, 60)

class Group:
    def __init__(self, server):
        pass

    def endpoints(self):
        apps = (raises, silent, wrong_status, wrong_header, half, hangs, works)
        return [Endpoint(method="GET", path=f"/odd/{a.__name__}", app=a) for a in apps]
"""


@pytest.mark.slow
def test_a_routes_plugin_that_misbehaves_fails_its_own_request_alone(tmp_path, monkeypatch) -> None:
    (tmp_path / "odd_routes.py").write_text(PLUGIN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    flags = ("--plugin", "odd_routes")
    with running_server(tmp_path / "log", *flags) as server, server.client() as http:
        with connect(server.url) as hanging:
            hanging.sendall(request_bytes("/odd/hangs"))
            for path in ("raises", "silent", "wrong_status", "wrong_header"):
                reply = http.get(f"/odd/{path}")
                assert reply.status_code == 500, path
                assert "secret" not in reply.text
                assert error_of(reply.content)["type"] == "server_error"
            with pytest.raises(httpx.RemoteProtocolError):
                http.get("/odd/half")
            assert http.post("/v1/completions", json=body()).status_code == 200
            until(lambda: load(server) == 1)
        until(lambda: load(server) == 0)
        plugins = {p["name"]: p for p in http.get("/plugins").json()["plugins"]}
        assert sum(plugins["odd_routes"]["failures"].values()) == 5
        assert not [line for line in server.log.read_text().splitlines() if line[:6] == "FORGED"]


@pytest.mark.slow
def test_a_routes_plugin_that_gives_no_endpoints_stops_the_start(tmp_path, monkeypatch) -> None:
    source = PLUGIN.split("    def endpoints")[0] + "    def endpoints(self):\n        return None"
    (tmp_path / "odd_routes.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    start = running_server(tmp_path / "log", "--plugin", "odd_routes")
    with pytest.raises(RuntimeError, match="octavo: error: plugin 'odd_routes' failed"), start:
        pass
