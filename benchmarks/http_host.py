"""What streams cost the process that answers HTTP: python -m benchmarks.http_host

The engine is a process of its own without a model: it gives every sequence a token each --step-ms,
from a vocabulary of words. The client only counts bytes, at the lowest priority. Counted is the CPU
time of the server's process for a token that it delivers, by thread, and how late its event loop
runs what is due (asked of a timer each 2 ms).

--others adds as many streams whose clients read nothing in every second window, and as many clients
that send a byte of a body a second in those: the first streams' time from event to event, and what
a token costs, with and without that, window by window.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.compare.shapes import SHAPES, write_model
from benchmarks.http_streaming import free_port, head_of, wait_for, write_tokenizer
from octavo.client import get_json, parse_address
from octavo.config import EngineConfig
from octavo.messages import EngineReady, EngineRequest, PromptReport, SequenceEnd, StepOutputs
from octavo_registry import PluginHost
from octavo_registry.manifest import Manifest
from octavo_registry.routes import Endpoint, Server

VOCAB = 32_000
MAX_TOKENS = 100_000
PROBE_SECONDS = 0.002


class SteadyCore:
    """An engine that gives each sequence a token at each step."""

    step_seconds = 0.01

    def __init__(self, config: EngineConfig, manifest: Manifest) -> None:
        self.ready = EngineReady(
            max_model_len=131_072,
            vocab_size=VOCAB,
            num_blocks=10_000_000,
            block_tokens=16,
            max_num_seqs=4096,
            max_num_batched_tokens=8192,
        )
        self._left: dict[int, int] = {}
        self._new: list[int] = []
        self._rng = random.Random(0)
        self._due = time.perf_counter()

    @property
    def has_work(self) -> bool:
        return bool(self._left)

    def add(self, requests: list[EngineRequest]) -> None:
        for request in requests:
            for sequence in request.sequences:
                self._left[sequence] = request.sampling.max_tokens
                self._new.append(sequence)

    def abort(self, sequences: list[int]) -> None:
        for sequence in sequences:
            self._left.pop(sequence, None)

    def step(self) -> StepOutputs:
        self._due = max(self._due + self.step_seconds, time.perf_counter())
        time.sleep(max(0.0, self._due - time.perf_counter()))
        sequences = list(self._left)
        prompts = [PromptReport(each, 0) for each in self._new if each in self._left]
        self._new = []
        ends = []
        for each in sequences:
            self._left[each] -= 1
            if not self._left[each]:
                del self._left[each]
                ends.append(SequenceEnd(each, "length"))
        start = self._rng.randrange(300, VOCAB - len(sequences))
        tokens = list(range(start, start + len(sequences)))
        return StepOutputs(sequences=sequences, tokens=tokens, prompts=prompts, ends=ends)

    def use_idle_time(self) -> bool:
        return False

    def call(self, method: str) -> Any:
        return {}

    def close(self) -> None:
        pass


class ProbeRoutes:
    """GET /probe: CPU seconds of this process's threads, and how late its loop has been since."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._late: list[float] = []
        self._watch: asyncio.Task[None] | None = None

    def endpoints(self) -> Sequence[Endpoint]:
        return [Endpoint(method="GET", path="/probe", app=self._answer)]

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        self._watch = self._watch or asyncio.create_task(self._wait())
        late, self._late = self._late, []
        observer = self._server.engine._front.outputs.observer
        tokens = sum(value for _, value in observer._generation_tokens.read().values)
        told = {"threads": thread_seconds(), "late": late, "tokens": tokens}
        body = json.dumps(told | {"at": time.perf_counter(), "rss": rss_mib()}).encode()
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _wait(self) -> None:
        while True:
            due = time.perf_counter() + PROBE_SECONDS
            await asyncio.sleep(PROBE_SECONDS)
            self._late.append(time.perf_counter() - due)


def thread_seconds() -> dict[str, float]:
    """CPU seconds of the event loop's thread, of the one that reads the engine, and of the rest."""
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    seconds = {"loop": 0.0, "engine": 0.0, "rest": 0.0}
    for task in Path("/proc/self/task").iterdir():
        name = names.get(int(task.name), "")
        kind = {"http": "loop", "octavo engine": "engine"}.get(name, "rest")
        seconds[kind] += int((task / "schedstat").read_text().split()[0]) / 1e9
    return seconds


def rss_mib() -> float:
    found = re.search(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def run_engine(step_ms: float, address: str) -> int:
    from octavo.engine.server import serve

    SteadyCore.step_seconds = step_ms / 1e3
    return serve(address, SteadyCore)


def run_server(folder: str, port: int, step_ms: float) -> int:
    """``octavo serve`` in one process, but for its engine and the probe."""
    from octavo.config import ModelConfig
    from octavo.config.server import ListenConfig, ServeConfig, ServerConfig
    from octavo.engine.client import EngineClient
    from octavo.engine.process_client import ProcessClient
    from octavo.frontend.frontend import make_frontend
    from octavo.model_folder import open_model
    from octavo.server.http.listening import bind
    from octavo.server.processes.http_thread import HttpThread, Service
    from octavo.server.request_log import LoggedLLM

    command = (sys.executable, "-P", "-m", "benchmarks.http_host", "engine", str(step_ms))

    def start(config: EngineConfig, host: PluginHost) -> EngineClient:
        return ProcessClient(config, host.manifest(), command=command)

    host = PluginHost.discover()
    host.routes.add("probe", "benchmarks.http_host:ProbeRoutes")
    model = ModelConfig(model=folder, dtype="float32", device="cpu", load_format="dummy")
    front = make_frontend(EngineConfig(model=model), host, open_model(model, host), start)
    engine = LoggedLLM.of_frontend(front)
    config = ServerConfig(
        listen=ListenConfig(port=port), serve=replace(ServeConfig(), access_log=False)
    )
    listeners = bind(config.listen, 1)
    try:
        http = HttpThread(engine, Service(config=config, model_names=("model",)), listeners[0])
        while http.is_running:
            time.sleep(0.1)
        return http.code
    finally:
        engine.close()


class Reader(asyncio.Protocol):
    """A stream's client: counts events, notes when they came, or does not read at all."""

    def __init__(self, body: bytes, path: str) -> None:
        self._body = body
        self._path = path
        self.times: list[float] = []
        self.num_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        assert isinstance(transport, asyncio.Transport)
        transport.write(head_of(self._path, len(self._body)) + self._body)

    def data_received(self, data: bytes) -> None:
        self.times.append(time.perf_counter())
        self.num_bytes += len(data)


async def open_streams(port: int, number: int, path: str, buffer: int = 0) -> list[Reader]:
    """``buffer``: bytes that the kernel takes in for a client that does not read; 0 is its own."""
    loop = asyncio.get_running_loop()
    body: dict[str, Any] = {"model": "model", "max_tokens": MAX_TOKENS, "stream": True}
    body |= {"ignore_eos": True}
    if path == "/v1/completions":
        body["prompt"] = list(range(300, 316))
    else:
        body["messages"] = [{"role": "user", "content": " w1 w2 w3"}]
        body["chat_template"] = "{% for m in messages %}{{ m.content }}{% endfor %}"
    data = json.dumps(body).encode()
    readers = []
    for _ in range(number):
        client = socket.socket()
        if buffer:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        client.setblocking(False)
        await loop.sock_connect(client, ("127.0.0.1", port))
        _, reader = await loop.create_connection(lambda: Reader(data, path), sock=client)
        readers.append(reader)
        await asyncio.sleep(0.002)
    return readers


async def all_begun(readers: Sequence[Reader]) -> None:
    async with asyncio.timeout(120):
        while not all(reader.times for reader in readers):
            await asyncio.sleep(0.05)


async def probe(port: int) -> dict[str, Any]:
    address = parse_address(f"http://127.0.0.1:{port}")
    return await asyncio.to_thread(get_json, address, "/probe")


async def window(port: int, readers: Sequence[Reader], seconds: float) -> dict[str, float]:
    """What the server did in this time, and how these readers got their events."""
    before = await probe(port)
    for reader in readers:
        reader.times.clear()
    await asyncio.sleep(seconds)
    gaps = [b - a for r in readers for a, b in zip(r.times, r.times[1:], strict=False)]
    num_reads = sum(len(reader.times) for reader in readers)
    after = await probe(port)
    tokens = after["tokens"] - before["tokens"]
    passed = after["at"] - before["at"]
    used = {k: after["threads"][k] - before["threads"][k] for k in after["threads"]}
    late = sorted(after["late"])
    found = {
        "tokens_per_second": tokens / passed,
        **{f"{kind}_us": spent / tokens * 1e6 for kind, spent in used.items()},
        "us_per_token": sum(used.values()) / tokens * 1e6,
        "cores": sum(used.values()) / passed,
        "tokens_per_read": tokens / num_reads if num_reads else 0.0,
        "gap_ms_p50": statistics.median(gaps) * 1e3 if gaps else 0.0,
        "gap_ms_mean": statistics.fmean(gaps) * 1e3 if gaps else 0.0,
        "late_ms_p50": statistics.median(late) * 1e3,
        "late_ms_p99": late[int(len(late) * 0.99)] * 1e3,
        "rss_mib": after["rss"],
    }
    return {key: round(value, 2) for key, value in found.items()}


async def open_writers(port: int, number: int) -> list[Any]:
    """Clients that have sent the head of a request."""
    loop = asyncio.get_running_loop()
    transports = []
    for _ in range(number):
        made, _ = await loop.create_connection(asyncio.Protocol, "127.0.0.1", port)
        made.write(head_of("/v1/completions", 1_000_000))
        transports.append(made)
    return transports


async def write_slowly(transports: Sequence[Any]) -> None:
    while True:
        for transport in transports:
            transport.write(b" ")
        await asyncio.sleep(1.0)


async def measure(args: argparse.Namespace, port: int) -> None:
    await probe(port)
    readers = await open_streams(port, args.streams, args.path)
    others = await open_streams(port, args.others, args.path, buffer=2048)
    await all_begun([*readers, *others])
    await asyncio.sleep(1.0)
    found: dict[str, list[dict[str, float]]] = {}
    for turn in range(args.windows):
        name = "slow" if turn % 2 and others else "all read"
        writing = None
        if others:
            for other in others:
                transport = other.transport
                (transport.pause_reading if name == "slow" else transport.resume_reading)()
            writers = await open_writers(port, args.others if name == "slow" else 0)
            writing = asyncio.create_task(write_slowly(writers))
            await asyncio.sleep(args.settle)
        found.setdefault(name, []).append(await window(port, readers, args.seconds))
        print(json.dumps({"clients": name} | found[name][-1]), flush=True)
        if writing is not None:
            writing.cancel()
            for transport in writers:
                transport.abort()
    for name, windows in found.items():
        medians = {key: statistics.median(each[key] for each in windows) for key in windows[0]}
        print(json.dumps({"median": name} | medians), flush=True)
    for reader in [*readers, *others]:
        reader.transport.abort()


@contextmanager
def steady_server(step_ms: float) -> Iterator[int]:
    """The server, on the port that it gives."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        write_model(replace(SHAPES["tiny"], vocab_size=VOCAB), Path(folder))
        write_tokenizer(VOCAB, Path(folder))
        command = [sys.executable, "-m", "benchmarks.http_host", "serve", folder]
        child = subprocess.Popen([*command, str(port), str(step_ms)], start_new_session=True)
        try:
            wait_for(parse_address(f"http://127.0.0.1:{port}"), child)
            with suppress(OSError):
                prefer(child.pid)
            yield port
        finally:
            child.kill()
            child.wait()


@contextmanager
def client_priority() -> Iterator[None]:
    """Let this process run after the server, but with its session before all else."""
    os.nice(19)
    group, before = Path("/proc/self/autogroup"), "0"
    with suppress(OSError):
        before = group.read_text().split()[-1]
        group.write_text("-15")
    try:
        yield
    finally:
        with suppress(OSError):
            group.write_text(before)


def prefer(server: int) -> None:
    """Let the server and its engine run before all else: what others do is not to be counted.

    Each leads a session, so that the priority of its scheduling group is no other process's.
    """
    children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
    for process in (server, *map(int, children)):
        Path(f"/proc/{process}/autogroup").write_text("-15")
        for task in Path(f"/proc/{process}/task").iterdir():
            os.setpriority(os.PRIO_PROCESS, int(task.name), -15)


def main() -> int:
    if sys.argv[1:2] == ["engine"]:
        return run_engine(float(sys.argv[2]), sys.argv[sys.argv.index("--connect") + 1])
    if sys.argv[1:2] == ["serve"]:
        return run_server(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--others", type=int, default=0)
    parser.add_argument("--step-ms", type=float, default=25.0)
    parser.add_argument("--windows", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of a window")
    parser.add_argument("--settle", type=float, default=2.0, help="before a window, with --others")
    parser.add_argument("--path", default="/v1/completions")
    args = parser.parse_args()
    with steady_server(args.step_ms) as port, client_priority():
        uvloop.run(measure(args, port))
    return 0


if __name__ == "__main__":
    sys.exit(main())
