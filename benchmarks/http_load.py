"""A server under more load than it can take: python -m benchmarks.http_load

``octavo serve octavo/tiny`` gets chats at a rate near what it can answer, and then at ten times
that. Counted are the tokens a second of answered requests, how long a refusal takes, what answers
``/health`` takes meanwhile, and the memory of the HTTP process. The clients run at the lowest
priority. Exits 1 if the goodput falls below 95 % or 99 of 100 refusals take more than 50 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.http_host import prefer
from benchmarks.http_streaming import free_port, wait_for
from octavo.client import parse_address

SERVE = "from octavo.cli import main; raise SystemExit(main())"
GOODPUT_SHARE = 0.95
REFUSAL_MS = 50.0
TOKENS = re.compile(rb'"completion_tokens":\s*(\d+)')


@dataclass(slots=True)
class Seen:
    """What the clients have seen of one rate."""

    refusals_ms: list[float] = field(default_factory=list)
    healths_ms: list[float] = field(default_factory=list)
    tokens: int = 0
    answers: int = 0
    others: int = 0
    """Neither an answer nor a refusal."""


class Client(asyncio.Protocol):
    """A kept connection; one request at a time."""

    def __init__(self) -> None:
        self._data = b""
        self._answer: asyncio.Future[bytes] | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, found, body = self._data.partition(b"\r\n\r\n")
        if not found or self._answer is None or self._answer.done():
            return
        length = re.search(rb"content-length: (\d+)", head.lower())
        if length is not None and len(body) >= int(length[1]):
            self._answer.set_result(self._data)

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error or ConnectionError("closed"))

    async def ask(self, data: bytes) -> tuple[bytes, float]:
        self._data = b""
        self._answer = asyncio.get_running_loop().create_future()
        began = time.perf_counter()
        self.transport.write(data)
        answer = await self._answer
        return answer, (time.perf_counter() - began) * 1e3


def request(method: str, path: str, body: dict[str, Any] | None = None) -> bytes:
    data = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(data)}\r\n\r\n".encode() + data


class Clients:
    """Connections to one server, made when all others are in use."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[Client] = []

    async def ask(self, data: bytes) -> tuple[bytes, float]:
        client = self._idle.pop() if self._idle else await self._connect()
        answer = await client.ask(data)
        self._idle.append(client)
        return answer

    async def _connect(self) -> Client:
        loop = asyncio.get_running_loop()
        _, client = await loop.create_connection(Client, "127.0.0.1", self._port)
        return client


async def offer(clients: Clients, rate: float, seconds: float, ask: bytes) -> Seen:
    """Send at a steady rate; what comes back after the time is not counted."""
    seen, loop = Seen(), asyncio.get_running_loop()
    end = loop.time() + seconds

    async def one() -> None:
        answer, took = await clients.ask(ask)
        if loop.time() > end:
            return
        status = answer[9:12]
        if status == b"503":
            seen.refusals_ms.append(took)
        elif status == b"200" and (found := TOKENS.search(answer)):
            seen.answers += 1
            seen.tokens += int(found[1])
        else:
            seen.others += 1

    async def watch_health() -> None:
        while loop.time() < end:
            seen.healths_ms.append((await clients.ask(request("GET", "/health")))[1])
            await asyncio.sleep(0.02)

    watching = asyncio.create_task(watch_health())
    tasks = []
    due = loop.time()
    while due < end:
        tasks.append(asyncio.create_task(one()))
        due += 1 / rate
        await asyncio.sleep(max(0.0, due - loop.time()))
    await watching
    await asyncio.gather(*tasks)
    return seen


def rss_mib(process: int) -> float:
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{process}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def told(values: list[float]) -> str:
    if not values:
        return "none"
    ordered = sorted(values)
    worst = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return f"median {statistics.median(ordered):.1f} p99 {worst:.1f} max {ordered[-1]:.1f} ms"


async def measure(args: argparse.Namespace, port: int, process: int) -> bool:
    clients = Clients(port)
    body = {"messages": [{"role": "user", "content": "Tell me about Norway."}]}
    body |= {"max_tokens": args.max_tokens, "ignore_eos": True}
    ask = request("POST", "/v1/chat/completions", body)
    found: dict[float, list[Seen]] = {1: [], 10: []}
    rate = args.rate
    if rate is None:  # as many as come back when all rows are full
        tried = await offer(clients, 100.0, args.seconds, ask)
        rate = 0.95 * tried.answers / args.seconds
        print(f"answers {rate:.1f} requests a second", flush=True)
    for _ in range(args.rounds):
        for times, made in found.items():
            await asyncio.sleep(args.pause)
            seen = await offer(clients, rate * times, args.seconds, ask)
            made.append(seen)
            print(
                f"{times:3}x {seen.tokens / args.seconds:7.0f} tokens/s  {seen.answers} answers, "
                f"{len(seen.refusals_ms)} refusals: {told(seen.refusals_ms)}; "
                f"/health {told(seen.healths_ms)}; {rss_mib(process):.0f} MiB, "
                f"{seen.others} others",
                flush=True,
            )
    tokens = {k: statistics.median(s.tokens for s in made) for k, made in found.items()}
    refusals = [took for seen in found[10] for took in seen.refusals_ms]
    share = tokens[10] / tokens[1]
    print(f"goodput at 10x {share:.1%} of 1x; refusals {told(refusals)}")
    worst = sorted(refusals)[int(len(refusals) * 0.99)] if refusals else 0.0
    return share >= GOODPUT_SHARE and worst < REFUSAL_MS


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=float, help="requests a second; default: found by trying")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--pause", type=float, default=3.0, help="between two rates")
    parser.add_argument("--max-tokens", type=int, default=64)
    args = parser.parse_args()
    port = free_port()
    command = [sys.executable, "-c", SERVE, "serve", "octavo/tiny", "--port", str(port)]
    command += ["--num-threads", "1", "--dtype", "float32", "--no-access-log"]
    command += ["--max-num-seqs", "16", "--max-queued-requests", "16"]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    child = subprocess.Popen(command, start_new_session=True)
    try:
        wait_for(parse_address(f"http://127.0.0.1:{port}"), child)
        with suppress(OSError):
            prefer(child.pid)
        os.nice(19)
        return 0 if uvloop.run(measure(args, port, child.pid)) else 1
    finally:
        child.terminate()
        child.wait(30)


if __name__ == "__main__":
    sys.exit(main())
