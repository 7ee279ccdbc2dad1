"""Hostile media over HTTP: refused, cheaply, while others are answered."""

from __future__ import annotations

import base64
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

import media_bombs
import media_files as media
from live_server import FLAGS, LiveServer, running_server
from server_faults import children

MOST_CPU_SECONDS = 1.0
MOST_GROWN_MIB = 100
"""Of all bombs together: less than any of them unfolds to, or than they have bytes in base64."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("files")
    picture = media.encoded(media.picture(), "PNG")
    (root / "allowed").mkdir()
    (root / "allowed" / "inside.png").write_bytes(picture)
    (root / "outside.png").write_bytes(picture)
    (root / "allowed" / "link.png").symlink_to(root / "outside.png")
    return root


@pytest.fixture(scope="module")
def live(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    log = tmp_path_factory.mktemp("server") / "log"
    flags = ("--allowed-local-media-path", str(folder / "allowed"))
    with running_server(log, *flags, base=("octavo/tiny-omni", *FLAGS)) as server:
        yield server


def ask(http: httpx.Client, *parts: dict[str, Any]) -> httpx.Response:
    content = [*parts, {"type": "text", "text": "Who are you?"}]
    body = {"messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": 20}
    return http.post("/v1/chat/completions", json=body)


def sent(modality: str, data: bytes) -> dict[str, Any]:
    text = base64.b64encode(data).decode()
    return linked(modality, f"data:{modality}/x;base64,{text}")


def linked(modality: str, url: str) -> dict[str, Any]:
    return {"type": f"{modality}_url", f"{modality}_url": {"url": url}}


def processes(pid: int) -> list[int]:
    """A process and all below it."""
    return [pid, *(each for child in children(pid) for each in processes(child))]


def cpu_seconds(pid: int) -> float:
    ticks = 0
    for each in processes(pid):
        fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int) -> float:
    pages = (int(Path(f"/proc/{each}/statm").read_text().split()[1]) for each in processes(pid))
    return sum(pages) * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.slow
def test_bombs_are_refused_cheaply_and_others_are_answered_meanwhile(live: LiveServer) -> None:
    pid, answers, ended = live.process.pid, [], threading.Event()

    def others() -> None:
        with live.client() as http:
            while not ended.is_set():
                answers.append(ask(http).json()["choices"][0]["message"]["content"])
                ended.wait(0.05)

    with live.client() as http:
        for modality, data in media_bombs.good():  # loads what decoders need
            assert ask(http, sent(modality, data)).status_code == 200
        neighbour = threading.Thread(target=others)
        before = resident_mib(pid)
        neighbour.start()
        try:
            for name, (modality, data) in [*media_bombs.bombs()] * 3:  # what stays adds up
                began = cpu_seconds(pid)
                response = ask(http, sent(modality, data))
                assert response.status_code in (400, 413), (name, response.text)
                assert cpu_seconds(pid) - began < MOST_CPU_SECONDS, name
        finally:
            ended.set()
            neighbour.join()
        assert resident_mib(pid) - before < MOST_GROWN_MIB
    assert len(answers) > 2
    assert {*answers} == {answers[0]}
    assert "tiny-omni" in answers[0]


@pytest.mark.slow
def test_files_are_read_below_the_allowed_folder_alone(live: LiveServer, folder: Path) -> None:
    inside = folder / "allowed" / "inside.png"
    with live.client() as http:
        assert ask(http, linked("image", f"file://{inside}")).status_code == 200
        for path in (
            "allowed/../outside.png",
            "allowed/link.png",
            "outside.png",
            "allowed/none.png",
        ):
            response = ask(http, linked("image", f"file://{folder}/{path}"))
            assert response.status_code == 400, path


@pytest.mark.slow
def test_no_address_of_the_servers_own_network_is_asked(live: LiveServer) -> None:
    asked = []

    class Picture(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)

    with HTTPServer(("127.0.0.1", 0), Picture) as server, live.client() as http:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        for host in ("127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "0.0.0.0"):
            response = ask(http, linked("image", f"http://{host}:{server.server_port}/a.png"))
            assert response.status_code == 400, host
        server.shutdown()
        thread.join()
    assert asked == []
