"""HTTP workers that are lost: when others take their places, and what is left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import zmq

from live_server import FLAGS, running_server
from octavo.errors import OctavoError
from octavo.server.processes import workers
from octavo.server.processes.messages import WorkerStart
from octavo.server.processes.workers import Workers
from server_faults import children, engine_of, named, until


@dataclass
class Clock:
    """Time goes on where somebody sleeps, ten times as fast."""

    now: float = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        time.sleep(seconds / 10)


@dataclass
class Engine:
    """Notes whom it lost."""

    end: str | None = None
    lost: list[int] = field(default_factory=list)

    def told(self, place: int) -> Any:
        return None

    def replace_worker(self, place: int) -> None:
        self.lost.append(place)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(workers, "time", made)
    return made


def start(script: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Workers, Engine, list[int]]:
    """A server's only worker, which is a script, and the numbers of those that were started."""
    monkeypatch.setattr(workers, "WORKER_COMMAND", ("sh", "-c", script))
    engine, numbers = Engine(), []

    def message(*, number: int, listener: int, **of_one: Any) -> WorkerStart:
        numbers.append(number)
        nothing: Any = {"config": None, "manifest": None, "service": None, "log_level": 0}
        return WorkerStart(number=number, listener=listener, num_workers=1, **nothing, **of_one)

    made = Workers(engine, message, [socket.socket()], socket.socket)  # type: ignore[arg-type]
    return made, engine, numbers


def check_dead(made: Workers) -> None:
    until(lambda: not made.is_running)
    made.check()


def test_a_worker_that_fails_while_the_server_starts_is_its_end(clock, monkeypatch) -> None:
    made, _, numbers = start("exit 3", monkeypatch)
    with pytest.raises(OctavoError, match=r"^HTTP worker 0 exited with code 3 before the server"):
        made.wait_until_ready()
    assert numbers == [0]


def test_a_worker_that_is_killed_while_the_server_starts_is_replaced_a_few_times(
    clock, monkeypatch, tmp_path
) -> None:
    script = f"echo >>{tmp_path}/n; [ $(wc -l <{tmp_path}/n) -gt %d ] && echo ready; kill -9 $$"
    made, engine, numbers = start(script % 2, monkeypatch)
    made.wait_until_ready()
    assert (numbers, engine.lost) == ([0, 1, 2], [0, 0])
    made.close()
    made, _, numbers = start(script % 100, monkeypatch)
    with pytest.raises(OctavoError, match=r"was killed by SIGKILL before the server had started"):
        made.wait_until_ready()
    assert numbers == [0, 1, 2, 3]


def test_a_worker_that_dies_over_and_over_is_replaced_after_pauses_that_grow(
    clock, monkeypatch
) -> None:
    made, engine, numbers = start("echo ready", monkeypatch)
    made.wait_until_ready()
    clock.now = 100.0  # the first has lived for long, and is replaced at once
    starts = [clock.now]
    while len(starts) < 9:
        check_dead(made)
        if len(numbers) - 1 > len(starts):
            starts.append(clock.now)
        clock.now += 0.5
    until_seen = 0.5
    pauses = [after - before - until_seen for before, after in pairwise(starts)]
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    assert engine.lost == [0] * 9
    made.close()


def test_a_worker_that_is_lost_while_the_server_drains_is_dropped_and_not_replaced(
    clock, monkeypatch
) -> None:
    made, engine, numbers = start("echo ready; kill -9 $$", monkeypatch)
    until(lambda: not made.is_running)
    made.wait_until_ready()
    made.drain()
    for _ in range(3):
        check_dead(made)
        clock.now += 100
    assert (engine.lost, numbers, made.code) == ([0], [0], 1)
    made.close()


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty TMPDIR whose path is short, as sockets need it."""
    with tempfile.TemporaryDirectory(prefix="o", dir="/tmp") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


@pytest.mark.slow
def test_a_worker_that_alone_has_lost_the_engine_is_replaced_and_no_folder_is_left(
    tmp_path: Path, temporary: Path
) -> None:
    with running_server(tmp_path / "log", "--api-workers", "2") as server:
        pid = server.process.pid
        first = set(named(pid, "octavo.server.processes.worker"))
        (address,) = temporary.glob("octavo-*/worker-0")
        with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
            stranger.connect(f"ipc://{address}")
            stranger.send(b"what no engine says")
            until(lambda: "the engine's thread failed" in server.log.read_text())
        until(lambda: len(set(named(pid, "octavo.server.processes.worker")) - first) == 1)
        until(lambda: len(list(temporary.glob("octavo-*/worker-*"))) >= 2)
        for _ in range(16):  # whichever worker answers
            until(lambda: server.get("/health").status_code == 200)
        assert "HTTP worker 0 exited with code 1; another is started" in server.log.read_text()
        left = children(pid)
        os.kill(pid, signal.SIGKILL)
        until(lambda: not any(Path(f"/proc/{child}").exists() for child in left))
    assert list(temporary.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["engine", "server", "worker"])
def test_what_ends_while_workers_start_leaves_nobody_waiting(tmp_path: Path, victim) -> None:
    command = [sys.executable, "-m", "octavo", "serve", "octavo/tiny", *FLAGS, "--api-workers", "2"]
    log = tmp_path / "log"
    with log.open("wb") as file, subprocess.Popen(command, stdout=file, stderr=file) as server:
        try:
            until(lambda: len(named(server.pid, "octavo.server.processes.worker")) == 2)
            workers = named(server.pid, "octavo.server.processes.worker")
            victims = {"engine": engine_of(server.pid), "server": server.pid, "worker": workers[0]}
            os.kill(victims[victim], signal.SIGKILL)
            if victim == "worker":  # another takes its place
                until(lambda: "is served at" in log.read_text())
                server.terminate()
            assert server.wait(60) == {"engine": 1, "server": -signal.SIGKILL, "worker": 0}[victim]
            until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
        finally:
            server.kill()
    if victim == "engine":
        assert "was killed by SIGKILL" in log.read_text().splitlines()[-1]
