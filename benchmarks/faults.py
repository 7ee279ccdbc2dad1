"""Faults at random moments, under load: python -m benchmarks.faults [--deaths 50]

The engine of a live server is killed, stopped, or made to raise while clients stream and wait for
whole answers; every other time the server starts another engine, and then ends. After that, clients
leave at every stage of a request. Exits with 1 if a client was left without an end in time, memory
was not free, or a process was left behind. Ends with the rows of docs/reliability.md. Beside times
is shown how late this process was: a machine without a core for it has none for the server either.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

OCTAVO: Final = "from octavo.cli import main; raise SystemExit(main())"
START_SECONDS: Final = 120.0
END_SECONDS: Final = 1.0
"""In which a client must have its end, and memory be free, once the engine has ended."""
HANG_SECONDS: Final = 1.0
"""--hang-seconds: an engine that is stopped is killed after twice that."""
NUM_CLIENTS: Final = 16
LOOK_SECONDS: Final = 0.01
SIGNALS: Final = {
    "killed": signal.SIGKILL,
    "stopped": signal.SIGSTOP,
    "raising": signal.SIGUSR1,
}
PLUGIN: Final = """
import signal
from octavo.errors import EngineDeadError
from octavo_registry import hookimpl

OCTAVO_API = "1"

def fail(number, frame):
    raise EngineDeadError("a device was lost")

@hookimpl
def engine_started(plan):
    signal.signal(signal.SIGUSR1, fail)
"""


@dataclass(slots=True)
class Asked:
    """One request, and what became of it."""

    body: dict[str, Any]
    began: float = field(default_factory=time.monotonic)
    ended: float | None = None
    how: str = "nothing"
    """"answered", "told" of a failure in the API's form, or what it should not be."""


@dataclass(slots=True)
class Death:
    """How clients fared when an engine ended."""

    kind: str
    in_flight: list[Asked]
    began: float
    client_lag: float = 0.0
    seconds_to_serve: float | None = None
    """Until another engine answered; None where the server had to end."""
    misses: list[str] = field(default_factory=list)

    @property
    def slowest(self) -> float:
        ends = [(asked.ended or float("inf")) - self.began for asked in self.in_flight]
        return max(ends, default=0.0)


@dataclass(slots=True)
class Load:
    """Clients that ask one thing after the other while they may."""

    http: httpx.AsyncClient
    rng: random.Random
    may_ask: asyncio.Event = field(default_factory=asyncio.Event)
    in_flight: list[Asked] = field(default_factory=list)
    most_lag: float = 0.0
    """Seconds that this event loop was late at most, since somebody set it to 0."""

    async def watch(self) -> None:
        while True:
            due = time.monotonic() + LOOK_SECONDS
            await asyncio.sleep(LOOK_SECONDS)
            self.most_lag = max(self.most_lag, time.monotonic() - due)

    async def client(self) -> None:
        while True:
            await self.may_ask.wait()
            asked = Asked(self._body())
            self.in_flight.append(asked)
            asked.how = await outcome(self.http, asked.body)
            asked.ended = time.monotonic()
            self.in_flight.remove(asked)
            if asked.how != "answered":
                await asyncio.sleep(0.05)

    def _body(self) -> dict[str, Any]:
        pick = self.rng
        return {
            "prompt": [pick.randrange(5, 500) for _ in range(pick.choice((5, 50, 500)))],
            "max_tokens": pick.randrange(1, 300),
            "n": pick.choice((1, 1, 1, 4)),
            "stream": pick.random() < 0.5,
            "ignore_eos": True,
        }


async def outcome(http: httpx.AsyncClient, body: dict[str, Any]) -> str:
    try:
        async with http.stream("POST", "/v1/completions", json=body) as reply:
            lines = [line async for line in reply.aiter_lines() if line]
    except httpx.HTTPError as error:
        return type(error).__name__
    if not body["stream"] or reply.status_code != 200:
        told = json.loads(lines[0])
        return "answered" if "usage" in told else "told" if "error" in told else "nonsense"
    if lines[-1:] != ["data: [DONE]"]:
        return "a stream without an end"
    return "told" if "error" in json.loads(lines[-2].removeprefix("data: ")) else "answered"


@dataclass(frozen=True, slots=True)
class Server:
    """A process of ``octavo serve octavo/tiny``."""

    process: subprocess.Popen[bytes]
    log: Path
    http: httpx.AsyncClient

    def children(self) -> dict[int, str]:
        """Processes and their command lines."""
        found: dict[int, str] = {}
        for file in Path(f"/proc/{self.process.pid}/task").glob("*/children"):
            with suppress(OSError):  # a thread or a child that has ended meanwhile
                for pid in file.read_text().split():
                    found[int(pid)] = Path(f"/proc/{pid}/cmdline").read_text()
        return found

    def engine(self) -> int:
        (found,) = [pid for pid, line in self.children().items() if "octavo.engine" in line]
        return found

    async def is_healthy(self) -> bool:
        try:
            return (await self.http.get("/health")).status_code == 200
        except httpx.HTTPError:
            return False

    async def metric(self, name: str) -> float:
        text = (await self.http.get("/metrics")).text
        found = re.search(rf"^octavo:{name}{{.*}} (\S+)$", text, re.MULTILINE)
        return float(found[1]) if found else float("nan")

    async def is_free(self) -> bool:
        names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        return not any([await self.metric(name) for name in names])


@asynccontextmanager
async def serving(*flags: str) -> AsyncIterator[Server]:
    base = ("octavo/tiny", "--port=0", "--dtype=float32", "--num-threads=1", "--no-access-log")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        (Path(folder) / "failing_engine.py").write_text(PLUGIN)
        path = os.pathsep.join((folder, os.environ.get("PYTHONPATH", "")))
        with log.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-c", OCTAVO, "serve", *base, "--plugin=failing_engine", *flags],
                stdout=file,
                stderr=file,
                env={**os.environ, "PYTHONPATH": path.rstrip(os.pathsep)},
            )
        try:
            found = None
            deadline = time.monotonic() + START_SECONDS
            while found is None and process.poll() is None and time.monotonic() < deadline:
                await asyncio.sleep(0.05)
                found = re.search(r"is served at (\S+) ", log.read_text())
            if found is None:
                raise RuntimeError(f"the server did not start:\n{log.read_text()}")
            limits = httpx.Limits(max_connections=None)
            async with httpx.AsyncClient(base_url=found[1], timeout=60, limits=limits) as http:
                yield Server(process, log, http)
        finally:
            process.terminate()
            process.wait(60)


async def within(seconds: float, holds: Callable[[], Any]) -> float | None:
    """After how long it held; None where it did not in time."""
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        held = holds()
        if await held if asyncio.iscoroutine(held) else held:
            return time.monotonic() - began
        await asyncio.sleep(LOOK_SECONDS)
    return None


async def die(server: Server, load: Load, kind: str, *, is_last: bool) -> Death:
    """End the engine this way at some moment, and look at all that should follow."""
    load.may_ask.set()
    await asyncio.sleep(load.rng.uniform(0.2, 1.2))
    children = server.children()
    engine = server.engine()
    load.most_lag = 0.0
    death = Death(kind, list(load.in_flight), time.monotonic())
    os.kill(engine, SIGNALS[kind])
    seconds = END_SECONDS + (2 * HANG_SECONDS if kind == "stopped" else 0)
    await within(60, lambda: all(asked.ended for asked in death.in_flight))
    death.client_lag = load.most_lag
    if death.slowest > seconds:
        death.misses.append(f"a client waited for {death.slowest:.2f} s")
    odd = {asked.how for asked in death.in_flight} - {"answered", "told"}
    death.misses += [f"a client got {how}" for how in odd]
    load.may_ask.clear()
    if is_last:
        if await within(30, lambda: server.process.poll() is not None) is None:
            death.misses.append("the server did not end")
        elif server.process.returncode != 1:
            death.misses.append(f"the server's code is {server.process.returncode}")
        if not server.log.read_text().splitlines()[-1].startswith("octavo: error: "):
            death.misses.append("the log's last line is not the cause")
    else:
        death.seconds_to_serve = await within(60, server.is_healthy)
        if death.seconds_to_serve is None:
            death.misses.append("no other engine answers")
        elif await within(END_SECONDS, server.is_free) is None:
            death.misses.append("memory is not free")
        children = {engine: children[engine]}
    gone = await within(5, lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))
    if gone is None:
        death.misses.append("a process was left behind")
    return death


async def engine_deaths(count: int, workers: int, rng: random.Random) -> list[Death]:
    """Two to a server: the first engine is replaced, and the second one's end is the server's."""
    kinds = [list(SIGNALS)[number % len(SIGNALS)] for number in range(count)]
    rng.shuffle(kinds)
    deaths: list[Death] = []
    flags = ("--on-engine-death=restart", f"--hang-seconds={HANG_SECONDS}")
    for first in range(0, count, 2):
        async with serving(*flags, f"--api-workers={workers}") as server:
            load = Load(server.http, rng)
            clients = [asyncio.create_task(load.client()) for _ in range(NUM_CLIENTS)]
            clients.append(asyncio.create_task(load.watch()))
            for number, kind in enumerate(kinds[first : first + 2]):
                death = await die(server, load, kind, is_last=number == 1)
                deaths.append(death)
                show_death(len(deaths), death)
            for client in clients:
                client.cancel()
    return deaths


DECODE: Final = {"prompt": [5], "max_tokens": 900, "ignore_eos": True}
PREFILL: Final = {"prompt": [5] * 900, "max_tokens": 100}
STAGES: Final = {"in the queue": DECODE, "in prefill": PREFILL, "in decode": DECODE}


async def leave(server: Server, body: dict[str, Any], stage: str) -> float:
    """Seconds until all that it took is free after the client has left in this stage."""
    http = server.http
    crowd: list[asyncio.Task[str]] = []
    awaited = ("num_requests_running", body["n"] if stage == "in decode" else 1)
    if stage == "in the queue":  # others have all rows
        crowd.append(asyncio.create_task(outcome(http, {**DECODE, "n": 4, "stream": False})))
        await reaches(server, "num_requests_running", 4)
        awaited = ("num_requests_waiting", 1)
    prompts = await server.metric("prompt_tokens_total")
    asking = asyncio.create_task(outcome(http, body))
    await reaches(server, *awaited)
    if stage == "in prefill" and await server.metric("prompt_tokens_total") > prompts:
        asking.cancel()  # it was read too fast to leave meanwhile: once more
        await within(10, server.is_free)
        return await leave(server, body, stage)
    asking.cancel()

    async def is_free() -> bool:
        waiting = "num_requests_waiting"
        return await server.metric(waiting) == 0 if crowd else await server.is_free()

    seconds = await within(10, is_free)
    for each in crowd:
        each.cancel()
        await within(10, server.is_free)
    return float("inf") if seconds is None else seconds


async def reaches(server: Server, name: str, value: float) -> None:
    async def holds() -> bool:
        return await server.metric(name) >= value

    if await within(10, holds) is None:
        raise RuntimeError(f"{name} did not reach {value}")


async def departures(rounds: int) -> dict[str, list[float]]:
    """Seconds until it was free, by stage and form of the request."""
    found: dict[str, list[float]] = {}
    flags = ("--max-num-seqs=4", "--max-num-batched-tokens=4", "--no-enable-prefix-caching")
    async with serving(*flags) as server:
        for _ in range(rounds):
            for stage, body in STAGES.items():
                for n in (1, 3):
                    for stream in (False, True):
                        form = f"{stage}, n = {n}{', streaming' if stream else ''}"
                        seconds = await leave(server, {**body, "n": n, "stream": stream}, stage)
                        found.setdefault(form, []).append(seconds)
    return found


def show_death(number: int, death: Death) -> None:
    hows = Counter(asked.how for asked in death.in_flight)
    again = death.seconds_to_serve
    print(
        f"{number:3} {death.kind:8} {len(death.in_flight):3} in flight: "
        f"{', '.join(f'{count} {how}' for how, count in sorted(hows.items())):28} "
        f"slowest {death.slowest:5.2f} s (lag here {death.client_lag * 1e3:3.0f} ms)  "
        f"{'the server ended' if again is None else f'another answers after {again:.1f} s'}"
        f"{''.join(f'  MISS: {miss}' for miss in death.misses)}",
        flush=True,
    )


def report(deaths: list[Death], left: dict[str, list[float]]) -> bool:
    """Print what docs/reliability.md tells; returns whether all holds."""
    misses = [f"{death.kind}: {miss}" for death in deaths for miss in death.misses]
    misses += [f"left {form}" for form, times in left.items() if max(times) > END_SECONDS]
    print("all holds" if not misses else f"{len(misses)} MISSED: {'; '.join(misses)}")
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[1]:.1f} over the last 5 minutes")
    told = Counter(asked.how for death in deaths for asked in death.in_flight)
    ends = ", ".join(
        f"{max(times):.2f} s ({kind}, slowest of {len(times)}; "
        f"median {statistics.median(times):.2f})"
        for kind in SIGNALS
        if (times := [death.slowest for death in deaths if death.kind == kind])
    )
    lag = max((death.client_lag for death in deaths), default=0.0)
    print(
        f"| engine killed, stopped (hang budget {HANG_SECONDS:g} s) or raising at random moments, "
        f"{NUM_CLIENTS} clients | everyone has an end: within {END_SECONDS:g} s, stopped within "
        f"{END_SECONDS + 2 * HANG_SECONDS:g} s; memory free; no process left | {len(deaths)} ends, "
        f"{told.total()} requests in flight: {', '.join(f'{n} {how}' for how, n in told.items())}; "
        f"last end after {ends}; the clients themselves were late by {lag * 1e3:.0f} ms at most | "
        "`python -m benchmarks.faults` |"
    )
    slowest = [max(times) for times in left.values()]
    if slowest:
        print(
            "| client leaves: queued, in prefill, in decode, `n` = 1 and 3, streaming or not | "
            f"free within {END_SECONDS:g} s | {min(slowest):.2f} to {max(slowest):.2f} s, "
            f"slowest of {len(next(iter(left.values())))} each | the same |"
        )
    return not misses


async def run(args: argparse.Namespace) -> bool:
    deaths = await engine_deaths(args.deaths, args.workers, random.Random(args.seed))
    return report(deaths, await departures(args.rounds))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--deaths", type=int, default=50)
    parser.add_argument("--workers", type=int, default=1, help="--api-workers")
    parser.add_argument("--rounds", type=int, default=5, help="of clients that leave")
    parser.add_argument("--seed", type=int, default=0)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    return 0 if asyncio.run(run(parser.parse_args())) else 1


if __name__ == "__main__":
    sys.exit(main())
