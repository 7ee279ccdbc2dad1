"""The client of ``octavo bench serve`` alone: python -m benchmarks.stream_client

A server that does nothing else writes the events of many streams, the same bytes as a server of
this API would, each in a write of its own, --rate of them a second in all. The client's time for an
event, by which it reads at most so many a second, is longest where each comes alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import socket
import time

import uvloop

from octavo.benchmarking.load import TimedRequest
from octavo.benchmarking.processes import run_load
from octavo.client import parse_address

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-type: text/event-stream\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(text: str, **more: object) -> bytes:
    body = {
        "id": "cmpl-0123456789abcdef0123456789abcdef",
        "object": "text_completion",
        "created": 1760000000,
        "model": "organisation/model",
        "choices": [
            {"index": 0, "text": text, "logprobs": None, "finish_reason": None, "stop_reason": None}
        ],
        **more,
    }
    return chunk(b"data: " + json.dumps(body).encode() + b"\n\n")


class Writer(asyncio.Protocol):
    """Answers any request with a number of events, one for every stream in each round."""

    streams: set[Writer]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.left = 0

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"POST"):
            self.left = int(data.partition(b"/events/")[2].split(b" ")[0])
            self.transport.write(HEAD)  # type: ignore[attr-defined]
            Writer.streams.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        Writer.streams.discard(self)


async def write(listener: socket.socket, rounds_per_second: float) -> None:
    Writer.streams = set()
    loop = asyncio.get_running_loop()
    await loop.create_server(Writer, sock=listener)
    one = event(" token")
    choice = {"index": 0, "text": "", "logprobs": None, "finish_reason": "length"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    last = event("", choices=[choice], usage=usage) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
    due = time.perf_counter()
    while True:
        for stream in list(Writer.streams):
            stream.left -= 1
            if stream.left > 0:
                stream.transport.write(one)  # type: ignore[attr-defined]
            else:
                stream.transport.write(last)  # type: ignore[attr-defined]
                Writer.streams.discard(stream)
        due = max(due + 1 / rounds_per_second, time.perf_counter())
        await asyncio.sleep(due - time.perf_counter())


def serve(listener: socket.socket, rounds_per_second: float) -> None:
    uvloop.run(write(listener, rounds_per_second))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--events", type=int, default=1000, help="of each stream")
    parser.add_argument("--rate", type=float, default=80_000, help="events a second in all")
    parser.add_argument("--processes", type=int, default=1, help="of the client, and of the server")
    args = parser.parse_args()
    listeners = []
    for _ in range(args.processes):  # the kernel divides connections among them
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(("127.0.0.1", listeners[0].getsockname()[1] if listeners else 0))
        listener.listen(2048)
        listeners.append(listener)
    servers = [
        multiprocessing.Process(target=serve, args=(each, args.rate / args.streams))
        for each in listeners
    ]
    for server in servers:
        server.start()
    address = parse_address(f"http://127.0.0.1:{listeners[0].getsockname()[1]}")
    planned = [TimedRequest(n, 0.0, f"/events/{args.events}", b"{}") for n in range(args.streams)]
    began = time.perf_counter()
    try:
        outcomes = run_load(address, planned, max_concurrency=None, processes=args.processes)
    finally:
        for server in servers:
            server.terminate()
    records = [record for outcome in outcomes for record in outcome.records]
    assert not any(record.error for record in records), records[0].error
    events = sum(len(record.times) for record in records)
    seconds = max(r.ended for r in records) - min(r.sent for r in records)
    cpu_seconds = sum(outcome.cpu_seconds for outcome in outcomes)
    print(
        json.dumps(
            {
                "streams": args.streams,
                "client_processes": args.processes,
                "events_per_second": round(events / seconds),
                "client_us_per_event": round(cpu_seconds / events * 1e6, 2),
                "ceiling_events_per_second": round(events / cpu_seconds) * args.processes,
                "wall_seconds": round(time.perf_counter() - began, 2),
            }
        )
    )


if __name__ == "__main__":
    main()
