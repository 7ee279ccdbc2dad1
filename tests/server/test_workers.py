"""Several HTTP processes on one engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import MagicMock

import httpx
import pytest
import zmq

from live_server import FLAGS, OCTAVO, running_server
from octavo.engine.messages import PromptReport, SequenceEnd, SequenceLogprobs, StepOutputs
from octavo.engine.server import _Clients, _Link, split_outputs
from octavo.server.processes import EngineEnded, EngineStarted
from octavo.server.worker import _Engines
from server_faults import answer, body, connect, engine_of, long_body, named, request_bytes, until


def test_each_worker_gets_the_outputs_of_its_own_sequences() -> None:
    logprobs = {s: SequenceLogprobs([s], [-1.0], 1) for s in (3, 4)}
    outputs = StepOutputs(
        sequences=[3, 4, 8],
        tokens=[30, 40, 80],
        logprobs=logprobs,
        ends=[SequenceEnd(4, "stop"), SequenceEnd(9, "abort")],
        prompts=[PromptReport(3, 0)],
        preempted=[7, 8],
    )
    even, odd = split_outputs(outputs, 2)
    assert (even.sequences, even.tokens, even.preempted) == ([4, 8], [40, 80], [8])
    assert (odd.sequences, odd.tokens, odd.preempted) == ([3], [30], [7])
    assert [list(part.logprobs) for part in (even, odd)] == [[4], [3]]
    assert [[end.sequence for end in part.ends] for part in (even, odd)] == [[4], [9]]
    assert [[prompt.sequence for prompt in part.prompts] for part in (even, odd)] == [[], [3]]


def test_a_worker_whose_requests_all_wait_hears_that_others_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with zmq.Context() as context:
        addresses = [f"inproc://worker-{number}" for number in range(2)]
        sockets = [context.socket(zmq.DEALER) for _ in range(3)]
        for place, address in zip(sockets, (*addresses, "inproc://parent"), strict=True):
            place.bind(address)
        parent = context.socket(zmq.DEALER)
        parent.connect("inproc://parent")
        clients = _Clients(context, _Link(parent))
        clients.add_workers(tuple(addresses))
        monkeypatch.setattr("octavo.engine.server.PROGRESS_SECONDS", 0.02)
        for _ in range(4):
            clients.send(StepOutputs(sequences=[0], tokens=[1]))
            time.sleep(0.03)
        clients.close()
        for closing in (parent, *sockets):
            heard = closing.poll(100) if closing is sockets[1] else 1
            closing.close(linger=0)
            assert heard


def test_a_worker_that_saw_its_engine_end_by_itself_waits_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[str] = []

    def link(address: str, ready: object) -> MagicMock:
        made.append(address)
        return MagicMock(alive=False)

    monkeypatch.setattr("octavo.server.worker.WorkerLink", link)
    said = iter([EngineEnded("killed"), None, EngineStarted("second", MagicMock()), None])
    monkeypatch.setattr("octavo.server.worker._next", lambda pipe: next(said))
    monkeypatch.setattr("os._exit", lambda code: None)
    engines = _Engines(MagicMock(address="first"))
    engines.link(MagicMock(), MagicMock())
    engines.listen(0)
    later = threading.Timer(0.05, engines.listen, (0,))
    later.start()
    engines.link(MagicMock(), MagicMock())
    later.join()
    assert made == ["first", "second"]


@pytest.mark.slow
def test_workers_share_an_engine_and_end_with_it(tmp_path: Path) -> None:
    with running_server(tmp_path / "log", "--api-workers", "2") as server:
        workers = named(server.process.pid, "octavo.server.worker")
        assert len(workers) == 2
        texts, ports = set(), set()
        for _ in range(24):  # a connection each: the kernel deals them out
            with connect(server.url) as client:
                client.sendall(request_bytes("/v1/completions", body(seed=1)))
                status, _, data = answer(client)
                assert status == 200
                texts.add(json.loads(data)["choices"][0]["text"])
                ports.add(client.getsockname()[1])
        assert len(texts) == 1
        with ThreadPoolExecutor(16) as pool:
            asks = [body(prompt=f"{i} is", max_tokens=40, ignore_eos=True) for i in range(16)]
            replies = list(
                pool.map(
                    lambda b: httpx.post(f"{server.url}/v1/completions", json=b, timeout=60), asks
                )
            )
        assert [r.json()["usage"]["completion_tokens"] for r in replies] == [40] * 16
        os.kill(engine_of(server.process.pid), signal.SIGKILL)
        assert server.process.wait(15) == 1
        assert "was killed by SIGKILL" in server.log.read_text().splitlines()[-1]
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), 5)


@pytest.mark.slow
def test_workers_drain_at_a_signal_and_a_lost_worker_ends_the_server(tmp_path: Path) -> None:
    flags = ("--api-workers", "2", "--on-engine-death", "restart")
    with running_server(tmp_path / "log", *flags) as server:
        os.kill(engine_of(server.process.pid), signal.SIGKILL)
        until(lambda: "another engine has started" in server.log.read_text(), 60)
        until(lambda: server.log.read_text().count("another engine has started") == 3, 20)
        with ThreadPoolExecutor(6) as pool:
            asked = [
                pool.submit(
                    httpx.post, f"{server.url}/v1/completions", json=long_body(), timeout=60
                )
                for _ in range(6)
            ]
            time.sleep(1)
            server.process.terminate()
            assert [each.result().status_code for each in asked] == [200] * 6
        assert server.process.wait(15) == 0
    with running_server(tmp_path / "log2", "--api-workers", "2") as server:
        os.kill(named(server.process.pid, "octavo.server.worker")[1], signal.SIGKILL)
        assert server.process.wait(15) == 1
        assert "HTTP worker 1 has ended" in server.log.read_text().splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["engine", "server"])
def test_what_ends_while_workers_start_leaves_nobody_waiting(tmp_path: Path, victim) -> None:
    command = [sys.executable, "-c", OCTAVO, "serve", "octavo/tiny", *FLAGS, "--api-workers", "2"]
    log = tmp_path / "log"
    with log.open("wb") as file, subprocess.Popen(command, stdout=file, stderr=file) as server:
        try:
            until(lambda: len(named(server.pid, "octavo.server.worker")) == 2, 60)
            workers = named(server.pid, "octavo.server.worker")
            pid = server.pid if victim == "server" else engine_of(server.pid)
            os.kill(pid, signal.SIGKILL)
            assert server.wait(15) == (-signal.SIGKILL if victim == "server" else 1)
            until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), 20)
        finally:
            server.kill()
    if victim == "engine":
        assert "was killed by SIGKILL" in log.read_text().splitlines()[-1]
