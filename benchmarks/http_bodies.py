"""What one long body does to everybody else: python -m benchmarks.http_bodies

While 32 streams get a token each 25 ms, a client sends bodies of many kinds and sizes. Shown are
the longest time that one of the streams waited for its next event, and how late the event loop was.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import time
from collections.abc import Iterable

import uvloop

from benchmarks.http_host import all_begun, client_priority, open_streams, probe, steady_server

STREAMS = 32


def bodies() -> Iterable[tuple[str, bytes]]:
    """Near the limit of parts, so that all is parsed, and near that of bytes."""
    for name, part in (("ids", b"301"), ("lists", b"[301]"), ("objects", b'{"a":1}')):
        per_part = {"ids": 1, "lists": 2, "objects": 3}[name]
        for count in (1_990_000 // per_part, 60 * 2**20 // (len(part) + 1)):
            yield name, b'{"prompt":[' + b",".join([part] * count) + b"]}"
    for mib in (1, 8, 60):
        yield "text", b'{"prompt":"' + b"w1, " * (mib * 2**18) + b'"}'


def post(port: int, data: bytes) -> tuple[int, float]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    began = time.perf_counter()
    connection.request("POST", "/v1/completions", data, {"content-type": "application/json"})
    answer = connection.getresponse()
    answer.read()
    return answer.status, time.perf_counter() - began


async def measure(port: int) -> None:
    await probe(port)
    readers = await open_streams(port, STREAMS, "/v1/completions")
    await all_begun(readers)
    for name, data in bodies():
        await asyncio.sleep(1.0)
        await probe(port)
        for reader in readers:
            reader.times.clear()
        status, seconds = await asyncio.to_thread(post, port, data)
        await asyncio.sleep(0.3)
        seen = await probe(port)
        longest = max(b - a for r in readers for a, b in zip(r.times, r.times[1:], strict=False))
        print(
            f"{name:8} {len(data) / 2**20:5.1f} MiB: {status} after {seconds:5.2f} s; longest wait "
            f"{longest * 1e3:4.0f} ms, loop late by up to {max(seen['late']) * 1e3:4.0f} ms, "
            f"{seen['rss']:.0f} MiB",
            flush=True,
        )


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    with steady_server(step_ms=25.0) as port, client_priority():
        uvloop.run(measure(port))


if __name__ == "__main__":
    main()
