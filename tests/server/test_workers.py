"""Several HTTP processes on one engine."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from unittest.mock import MagicMock, call

import msgspec
import pytest
import zmq

from live_server import LiveServer, running_server
from octavo.config.server import ServerConfig
from octavo.engine.server import _apply, _Clients, _Link, split_outputs
from octavo.messages import (
    AbortSequences,
    AddRequests,
    EngineRequest,
    PromptReport,
    ReplaceWorker,
    SequenceEnd,
    SequenceLogprobs,
    StepOutputs,
    TokenSampling,
)
from octavo.pooled_calls import PooledRows
from octavo.server.processes import worker
from octavo.server.processes.messages import Cut, Drain, EngineEnded, EngineStarted
from octavo.server.processes.worker import _obey
from server_faults import (
    answer,
    body,
    children,
    connect,
    engine_of,
    long_body,
    named,
    request_bytes,
    until,
)

ANSWERED = 'http_requests_total{.*route="/v1/completions",status="200".*}'


@pytest.mark.parametrize("more", [[], [31, 32]], ids=["one each", "a burst"])
def test_each_worker_gets_the_outputs_of_its_own_sequences(more: list[int]) -> None:
    logprobs = {s: [SequenceLogprobs([s], [-1.0], 1)] for s in (3, 4)}
    outputs = StepOutputs(
        sequences=[3, 4, 8],
        tokens=[30, *more, 40, 80],
        counts=[1 + len(more), 1, 1] if more else [],
        logprobs=logprobs,
        ends=[SequenceEnd(4, "stop"), SequenceEnd(9, "abort")],
        prompts=[PromptReport(3, 0)],
        preempted=[7, 8],
        pooled=[PooledRows(call=10), PooledRows(call=11)],
    )
    even, odd = split_outputs(outputs, 2)
    assert (even.sequences, even.tokens, even.preempted) == ([4, 8], [40, 80], [8])
    assert (odd.sequences, odd.tokens, odd.preempted) == ([3], [30, *more], [7])
    assert [dict(part.by_sequence()) for part in (even, odd)] == [
        {4: (40,), 8: (80,)},
        {3: (30, *more)},
    ]
    assert [list(part.logprobs) for part in (even, odd)] == [[4], [3]]
    assert [[end.sequence for end in part.ends] for part in (even, odd)] == [[4], [9]]
    assert [[prompt.sequence for prompt in part.prompts] for part in (even, odd)] == [[], [3]]
    assert [[rows.call for rows in part.pooled] for part in (even, odd)] == [[10], [11]]


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


def test_an_engine_drops_what_a_lost_worker_asked_for_and_finds_the_next_one() -> None:
    with zmq.Context() as context:
        sockets = [context.socket(zmq.DEALER) for _ in range(4)]
        for place, name in zip(sockets, ("parent", "first", "second", "new"), strict=True):
            place.bind(f"inproc://{name}")
        parent = context.socket(zmq.DEALER)
        parent.connect("inproc://parent")
        clients = _Clients(context, _Link(parent))
        clients.add_workers(("inproc://first", "inproc://second"))
        core = MagicMock()
        for place, sequences in ((1, (0, 2, 4)), (2, (1, 3, 5))):
            request = EngineRequest(
                request_id="a",
                sequences=sequences,
                prompt_token_ids=[1],
                sampling=TokenSampling(seed=0, max_tokens=1),
            )
            sockets[place].send(msgspec.msgpack.encode(AddRequests([request])))
            _apply(*_received(clients, core))
        sockets[1].send(msgspec.msgpack.encode(AbortSequences([2])))
        _apply(*_received(clients, core))
        clients.send(
            StepOutputs(sequences=[0, 1, 4], tokens=[1] * 3, ends=[SequenceEnd(4, "stop")])
        )
        sockets[0].send(msgspec.msgpack.encode(ReplaceWorker(0, "inproc://new")))
        _apply(*_received(clients, core))
        assert [call.args for call in core.abort.call_args_list] == [([2],), ([0],)]
        clients.send(StepOutputs(sequences=[6], tokens=[7]))
        heard = msgspec.msgpack.decode(sockets[3].recv(), type=StepOutputs)
        assert (heard.sequences, heard.tokens) == ([6], [7])
        clients.close()
        for closing in (parent, *sockets):
            closing.close(linger=0)


def _received(clients: _Clients, core: MagicMock) -> tuple[Any, MagicMock, _Clients, _Link]:
    received = clients.receive(block=True)
    assert received is not None
    message, link = received
    return message, core, clients, link


def obeyed(
    *orders: Any, end: str | None, looks: int = 0
) -> tuple[int, MagicMock, SimpleQueue[Any]]:
    """The exit code of a worker with these orders, what it did, and the engines it was told of."""
    waiting: SimpleQueue[Any] = SimpleQueue()
    engines: SimpleQueue[Any] = SimpleQueue()
    for order in orders:
        waiting.put(order)
    did = MagicMock()
    did.engine.end = end
    did.http.code = 0
    left = itertools.count(looks, -1)
    type(did.http).is_running = property(lambda http: not waiting.empty() or next(left) > 0)
    return _obey(waiting, engines, did.engine, did.http, ServerConfig()), did, engines


def test_a_worker_does_as_its_parent_says() -> None:
    started = EngineStarted("ipc://second", MagicMock())
    code, did, engines = obeyed(EngineEnded("killed", False), started, Drain(), Cut(), end=None)
    assert code == 0
    assert did.mock_calls == [
        call.http.engine_ended("killed", is_last=False),
        call.engine.restart(),
        call.http.engine_started(),
        call.http.drain(),
        call.http.cut(),
    ]
    assert engines.get_nowait() is started


def test_a_worker_whose_engine_has_ended_waits_for_its_parents_word_and_then_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker, "LIVENESS_SECONDS", 0.001)
    monkeypatch.setattr(worker, "ALONE_SECONDS", 0.05)
    code, did, _ = obeyed(end="its thread failed", looks=2000)
    assert code == worker.FAILED
    assert did.mock_calls[:2] == [
        call.http.engine_ended("its thread failed", is_last=True),
        call.http.drain(),
    ]
    code, did, _ = obeyed(EngineEnded("killed", False), end="killed", looks=200)
    assert (code, did.http.drain.called) == (0, False)


@pytest.mark.slow
def test_workers_share_an_engine_add_up_their_counts_and_end_with_it(tmp_path: Path) -> None:
    counted = "generation_tokens_total"
    with running_server(tmp_path / "log", "--api-workers", "2") as server, ExitStack() as stack:
        workers = workers_of(server)
        assert len(workers) == 2
        clients = [stack.enter_context(connected(server, worker)) for worker in workers]
        texts, seen = set(), []
        for client in clients * 3:
            ask = body(seed=1, ignore_eos=True)
            client.sendall(request_bytes("/v1/completions", ask))
            status, _, data = answer(client)
            assert status == 200
            texts.add(json.loads(data)["choices"][0]["text"])
            seen += [sample(each, counted) for each in clients]
        assert len(texts) == 1
        assert seen == sorted(seen)  # no sum ever falls, whichever worker tells it
        with ThreadPoolExecutor(16) as pool:
            asks = [body(prompt=f"{i} is", max_tokens=40, ignore_eos=True) for i in range(16)]
            replies = list(pool.map(lambda ask: server.post("/v1/completions", ask), asks))
        assert [r.json()["usage"]["completion_tokens"] for r in replies] == [40] * 16
        for client in clients:
            until(lambda client=client: sample(client, counted) == 6 * 8 + 16 * 40)
            assert sample(client, 'request_success_total{.*="length".*}') == 6 + 16
            assert sample(client, ANSWERED) == 6 + 16
            assert sample(client, "iteration_tokens_total_count") >= 6 * 8 + 40
        os.kill(engine_of(server.process.pid), signal.SIGKILL)
        assert server.process.wait(60) == 1
        assert "was killed by SIGKILL" in server.log.read_text().splitlines()[-1]
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))


@pytest.mark.slow
def test_workers_get_another_engine_and_drain_at_a_signal(tmp_path: Path) -> None:
    flags = ("--api-workers", "2", "--on-engine-death", "restart")
    with running_server(tmp_path / "log", *flags) as server, ExitStack() as stack:
        os.kill(engine_of(server.process.pid), signal.SIGKILL)
        until(lambda: "another engine has started" in server.log.read_text())
        until(lambda: all(server.get("/health").status_code == 200 for _ in range(16)))
        clients = [stack.enter_context(connected(server, pid)) for pid in workers_of(server) * 3]
        ask_at_once(server, clients)
        server.process.terminate()
        assert [answer(client)[0] for client in clients] == [200] * 6
        assert server.process.wait(60) == 0


@pytest.mark.slow
def test_a_lost_worker_is_replaced_and_costs_its_own_requests_alone(tmp_path: Path) -> None:
    with running_server(tmp_path / "log", "--api-workers", "2") as server:
        lost, kept = workers_of(server)
        with (
            connected(server, lost) as one,
            connected(server, kept) as other,
            connected(server, kept) as third,
        ):
            for client in (one, other) * 4:
                client.sendall(request_bytes("/v1/completions", body(max_tokens=4)))
                assert answer(client)[0] == 200
            until(lambda: sample(third, ANSWERED) == 8)  # those of the lost one were published
            one.sendall(request_bytes("/v1/responses", {"input": "a", "max_output_tokens": 4}))
            stored = json.loads(answer(one)[2])["id"]
            other.sendall(request_bytes(f"/v1/responses/{stored}"))
            assert json.loads(answer(other)[2])["id"] == stored
            asked = long_body(max_tokens=800, stream=True, n=4)
            for client in (one, other):
                client.sendall(request_bytes("/v1/completions", asked))
            until(lambda: sample(third, "num_requests_running") == 8)
            os.kill(lost, signal.SIGKILL)
            until(lambda: sample(third, "num_requests_running") == 4)
            assert b"[DONE]" in read_all(other)
        with ThreadPoolExecutor(16) as pool:  # some wait in the lost one's socket
            replies = pool.map(lambda _: server.post("/v1/completions", body()), range(16))
            assert {each.status_code for each in replies} == {200}
        until(lambda: lost not in (found := workers_of(server)) and len(found) == 2)
        assert server.get(f"/v1/responses/{stored}").status_code == 200
        for worker in workers_of(server):
            with connected(server, worker) as client:
                until(lambda client=client: sample(client, ANSWERED) == 8 + 1 + 16)
                assert sample(client, "kv_cache_usage_perc") == 0
        server.process.terminate()
        assert server.process.wait(60) == 0
    log = server.log.read_text()
    assert log.count("; another is started") == 1
    assert "was killed by SIGKILL" in log
    assert "Traceback" not in log


@pytest.mark.slow
def test_a_signal_to_all_processes_at_once_lets_what_is_in_flight_complete(tmp_path: Path) -> None:
    with running_server(tmp_path / "log", "--api-workers", "2") as server, ExitStack() as stack:
        clients = [stack.enter_context(connected(server, pid)) for pid in workers_of(server) * 2]
        ask_at_once(server, clients)
        for pid in (server.process.pid, *children(server.process.pid)):
            os.kill(pid, signal.SIGTERM)
        assert [answer(client)[0] for client in clients] == [200] * 4
        assert server.process.wait(60) == 0


def workers_of(server: LiveServer) -> list[int]:
    return named(server.process.pid, "octavo.server.processes.worker")


def connected(server: LiveServer, worker: int) -> socket.socket:
    """A connection that the kernel has dealt to this worker."""
    dealt: list[socket.socket] = []

    def is_dealt() -> bool:
        client = connect(server.url)
        if worker_of(server, client) == worker:
            dealt.append(client)
        else:
            client.close()
        return bool(dealt)

    until(is_dealt)
    return dealt[0]


def worker_of(server: LiveServer, client: socket.socket) -> int:
    """The process that has the other end of the connection."""
    client.sendall(request_bytes("/ping"))
    assert answer(client)[0] == 200  # it has been accepted
    ends = [f":{end[1]:04X}" for end in (client.getpeername(), client.getsockname())]
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    (inode,) = [row[9] for row in rows if row[1][8:] == ends[0] and row[2][8:] == ends[1]]
    (found,) = [pid for pid in workers_of(server) if f"socket:[{inode}]" in files_of(pid)]
    return found


def files_of(pid: int) -> list[str]:
    """What a process has open; files may be closed and processes end meanwhile."""
    names = []
    with suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                names.append(os.readlink(link))
    return names


def ask_at_once(server: LiveServer, clients: list[socket.socket]) -> None:
    """Ask through each, and wait until all of them are being answered."""
    with connect(server.url) as watching:
        for client in clients:
            client.sendall(request_bytes("/v1/completions", long_body()))
        until(lambda: sample(watching, "num_requests_running") == len(clients))


def sample(client: socket.socket, name: str) -> float:
    """What the worker of this connection tells; 0 of what has not been counted yet."""
    client.sendall(request_bytes("/metrics"))
    status, _, text = answer(client)
    assert status == 200
    found = re.findall(rf"^octavo:{name}(?:{{.*}})? (\S+)$", text.decode(), re.MULTILINE)
    assert len(found) <= 1
    return float(found[0]) if found else 0.0


def read_all(client: socket.socket) -> bytes:
    data = b""
    while b"[DONE]" not in data and (more := client.recv(65536)):
        data += more
    return data
