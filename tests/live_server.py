"""`octavo serve octavo/tiny` in a process of its own, for tests that speak HTTP with it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

START_SECONDS = 300
ANSWER_SECONDS = 120
OCTAVO = (sys.executable, "-P", "-m", "octavo")  # without -P it starts afresh: see zygote
FLAGS = ("--port", "0", "--dtype", "float32", "--num-threads", "1")


@dataclass(frozen=True)
class LiveServer:
    """A server that answers at ``url``."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def client(self, **options) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=ANSWER_SECONDS, **options)

    def get(self, path: str) -> httpx.Response:
        """Ask through a connection of its own: of several workers, any may answer."""
        with self.client() as http:
            return http.get(path)

    def post(self, path: str, json: object) -> httpx.Response:
        """The same with a body."""
        with self.client() as http:
            return http.post(path, json=json)


@contextmanager
def running_server(
    log: Path,
    *flags: str,
    base: tuple[str, ...] = ("octavo/tiny", *FLAGS),
    program: tuple[str, ...] = OCTAVO,
) -> Iterator[LiveServer]:
    command = [*program, "serve", *base, *flags]
    with (
        log.open("wb") as file,
        subprocess.Popen(command, stderr=file, stdout=file, process_group=0) as process,
    ):
        try:
            yield LiveServer(_address(process, log), process, log)
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        _, _, found = log.read_text().partition("is served at ")
        if " " in found:
            return found.split()[0]
        time.sleep(0.05)
    raise RuntimeError(f"the server did not start:\n{log.read_text()}")
