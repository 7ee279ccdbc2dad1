"""What tests of faults do to a live server: raw connections, processes, streams."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx

from live_server import LiveServer

PROMPT = "The capital of France is"


def body(**more: Any) -> dict[str, Any]:
    return {"prompt": PROMPT, "max_tokens": 8, "temperature": 0, **more}


def long_body(**more: Any) -> dict[str, Any]:
    return body(**{"max_tokens": 400, "ignore_eos": True, **more})


def children(pid: int) -> list[int]:
    """Those that any thread has started; not the zygote of a process that was copied."""
    found = Path(f"/proc/{pid}/task").glob("*/children")
    listed = [int(child) for file in found for child in file.read_text().split()]
    return [child for child in listed if "\0zygote\0" not in _command(child)]


def named(pid: int, part: str) -> list[int]:
    """Child processes whose command line has the part."""
    return [child for child in children(pid) if part in _command(child)]


def _command(pid: int) -> str:
    """Empty for a process that has ended meanwhile."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def engine_of(pid: int) -> int:
    (engine,) = named(pid, "octavo.engine")
    return engine


def until(holds: Callable[[], Any], seconds: float = 60.0) -> float:
    """Wait for it, long enough for a busy machine; returns after how long it held."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < seconds, "it did not come to hold"
        time.sleep(0.01)
    return time.monotonic() - began


def events(reply: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in reply.iter_lines():
        if line.startswith("data: {"):
            yield json.loads(line[6:])


def connect(url: str, receive_bytes: int | None = None) -> socket.socket:
    """Connect; a small ``receive_bytes`` makes a client that does not read felt at once."""
    host, port = url.removeprefix("http://").split(":")
    made = socket.socket()
    if receive_bytes is not None:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    made.settimeout(60)
    made.connect((host, int(port)))
    return made


def request_bytes(path: str, sent: dict[str, Any] | None = None, *headers: str) -> bytes:
    data = b"" if sent is None else json.dumps(sent).encode()
    lines = [
        f"{'GET' if sent is None else 'POST'} {path} HTTP/1.1",
        "host: localhost",
        "content-type: application/json",
        f"content-length: {len(data)}",
        *headers,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def answer(connection: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """One answer that has a content-length; all of what came if the connection ends."""
    data = b""
    while b"\r\n\r\n" not in data and (more := connection.recv(65536)):
        data += more
    head, _, rest = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
    while len(rest) < int(headers.get("content-length", 0)) and (more := connection.recv(65536)):
        rest += more
    return int(first.split()[1]), headers, rest


def error_of(data: bytes) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(data)["error"]
    assert set(told) == {"message", "type", "param", "code"}
    return told


def is_closed(connection: socket.socket, seconds: float = 60.0) -> bool:
    """Whether the other side closes it in time; what still comes is read."""
    connection.settimeout(seconds)
    try:
        while connection.recv(65536):
            pass
    except TimeoutError:
        return False
    except (ConnectionError, ssl.SSLError):
        return True
    return True


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)


def counts(server: LiveServer) -> tuple[float, float, float]:
    """Running, waiting, and the part of the cache that is in use."""
    text = server.get("/metrics").text
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    found = [re.search(rf"^octavo:{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE) for name in names]
    running, waiting, usage = (float(m[1]) for m in found if m)
    return running, waiting, usage


def is_readable(client: socket.socket) -> bool:
    return bool(select.select([client], [], [], 0.01)[0])


def is_free(server: LiveServer) -> bool:
    return counts(server) == (0, 0, 0)


def load(server: LiveServer) -> int:
    """How many requests it has in hand."""
    number: int = server.get("/load").json()["server_load"]
    return number


def resident_mib(pids: Iterable[int]) -> float:
    """The memory of all these processes."""
    pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids]
    return sum(pages) * os.sysconf("SC_PAGE_SIZE") / 2**20
