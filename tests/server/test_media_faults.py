"""Media that are made to do harm, and clients that leave amid media: docs/reliability.md."""

from __future__ import annotations

import base64
import os
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from examples.train_tiny_omni.pictures import Figure, draw_picture
from PIL import Image

import media_bombs
from live_server import LiveServer
from media_files import encoded
from server_faults import (
    children,
    connect,
    counts,
    is_free,
    load,
    request_bytes,
    resident_mib,
    until,
)

CHATS = "/v1/chat/completions"
PASSES = 8
"""Over all bombs: what malloc keeps comes with repetition."""
AT_ONCE = 4
MOST_SECONDS = 1.0
MOST_GROWTH_MIB = 64
MOST_SLOWER = 10
"""Times as long, at the median, as a question takes alone: bombs keep both cores busy."""
MOST_SECONDS_TO_FREE = 5.0
"""A fifth of that is enough where nothing else runs. What has begun to be read is read on."""
TRIES = 3
"""A machine with other work may be late once."""


def part(modality: str, url: str | bytes) -> dict[str, Any]:
    if isinstance(url, bytes):
        url = f"data:{modality}/x;base64,{base64.b64encode(url).decode()}"
    return {"type": f"{modality}_url", f"{modality}_url": {"url": url}}


def body(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    content = [*parts, {"type": "text", "text": "What is this?"}]
    messages = [{"role": "user", "content": content}]
    return {"messages": messages, "temperature": 0, "max_tokens": 20, **more}


def drawn(colour: str) -> bytes:
    rng = np.random.default_rng(3)
    return encoded(draw_picture(rng, Figure("circle", colour), held_out=True).image, "PNG")


RED = part("image", drawn("red"))
ANSWER = "A red circle."


def ask(http: httpx.Client, sent: dict[str, Any]) -> tuple[httpx.Response, float]:
    began = time.monotonic()
    reply = http.post(CHATS, json=sent)
    return reply, time.monotonic() - began


def text_of(reply: httpx.Response) -> str:
    assert reply.status_code == 200, reply.text
    text: str = reply.json()["choices"][0]["message"]["content"]
    return text


def seconds_of_question(http: httpx.Client) -> float:
    reply, seconds = ask(http, body(RED))
    assert text_of(reply) == ANSWER
    return seconds


@pytest.fixture(scope="module")
def http(omni: LiveServer) -> Iterator[httpx.Client]:
    with omni.client() as client:
        yield client


@pytest.mark.slow
def test_bad_media_are_refused_at_once_and_neither_kept_nor_felt_by_others(omni, http) -> None:
    bad = [(name, body(part(*given))) for name, given in media_bombs.bombs()]
    for given in media_bombs.good():
        text_of(http.post(CHATS, json=body(part(*given))))
    alone = [seconds_of_question(http) for _ in range(20)]
    processes = [omni.process.pid, *children(omni.process.pid)]
    before = most = resident_mib(processes)
    beside: list[float] = []
    done = threading.Event()

    def others() -> None:
        with omni.client() as client:
            while not done.is_set():
                beside.append(seconds_of_question(client))

    def refused(given: tuple[str, dict[str, Any]]) -> None:
        nonlocal most
        name, sent = given
        for trial in range(TRIES):
            reply, seconds = ask(http, sent)
            assert reply.status_code in (400, 413), (name, reply.text)
            assert "messages[0].content[0]" in reply.json()["error"]["message"], name
            if seconds < MOST_SECONDS:
                break
            assert trial + 1 < TRIES, name
        most = max(most, resident_mib(processes))

    with ThreadPoolExecutor(AT_ONCE + 1) as pool:
        other = pool.submit(others)
        try:
            list(pool.map(refused, bad * PASSES))
            while len(beside) < 5 and not other.done():
                list(pool.map(refused, bad))
        finally:
            done.set()
        other.result()
    assert most - before < MOST_GROWTH_MIB
    assert len(beside) >= 5
    assert statistics.median(beside) < MOST_SLOWER * statistics.median(alone)


@pytest.mark.slow
def test_large_pictures_that_are_read_leave_no_memory_behind(omni, http) -> None:
    large = encoded(Image.new("RGB", (6000, 6000), "red"), "PNG")
    processes = [omni.process.pid, *children(omni.process.pid)]
    before = 0.0
    for number in range(8):  # each is another one: no cache has it
        text_of(http.post(CHATS, json=body(part("image", large + bytes([number])))))
        before = before or resident_mib(processes)
    assert resident_mib(processes) - before < MOST_GROWTH_MIB


@pytest.mark.slow
def test_more_media_than_allowed_and_media_for_a_text_model_are_refused(http, server) -> None:
    reply, seconds = ask(http, body(*[RED] * 33))
    assert reply.status_code == 413, reply.text
    assert seconds < MOST_SECONDS
    reply = server.post(CHATS, body(RED))
    assert reply.status_code == 400, reply.text
    assert "takes no image" in reply.json()["error"]["message"]


@pytest.mark.slow
def test_files_below_the_folder_are_read_and_what_leads_out_of_it_is_not(
    http, media_folder: Path, tmp_path: Path
) -> None:
    (media_folder / "inner").mkdir()
    (media_folder / "inner" / "red.png").write_bytes(drawn("red"))
    (tmp_path / "blue.png").write_bytes(drawn("blue"))
    (media_folder / "link.png").symlink_to(tmp_path / "blue.png")
    (media_folder / "out").symlink_to(tmp_path)
    os.mkfifo(media_folder / "pipe")
    for path in ("inner/red.png", "inner/../inner/red.png"):
        reply = http.post(CHATS, json=body(part("image", f"file://{media_folder}/{path}")))
        assert text_of(reply) == ANSWER
    up = "/".join([".."] * len(media_folder.parts))
    for path in (
        f"{up}{tmp_path}/blue.png",
        f"{up}{tmp_path}/blue.png".replace("..", "%2e%2e"),
        "link.png",
        "out/blue.png",
        "pipe",
        "inner",
        "missing.png",
    ):
        reply, seconds = ask(http, body(part("image", f"file://{media_folder}/{path}")))
        assert reply.status_code == 400, (path, reply.text)
        assert "there is no such file below the folder" in reply.json()["error"]["message"]
        assert seconds < MOST_SECONDS


@pytest.mark.slow
def test_nothing_is_fetched_from_private_addresses(http) -> None:
    """Not even where their names are allowed."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        for url in (
            f"http://127.0.0.1:{port}/a.png",
            f"http://localhost:{port}/a.png",
            f"http://2130706433:{port}/a.png",
            f"http://[::1]:{port}/a.png",
            f"http://a:b@127.0.0.1:{port}/a.png",
            "http://169.254.169.254/latest/meta-data",
            f"ftp://127.0.0.1:{port}/a.png",
        ):
            reply, seconds = ask(http, body(part("image", url)))
            assert reply.status_code == 400, (url, reply.text)
            assert seconds < MOST_SECONDS
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()


@pytest.mark.slow
@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "in one piece"])
def test_clients_that_leave_amid_media_leave_nothing(omni, http, stream) -> None:
    """Some while their pictures are read or wait for it, some while they are answered."""
    large = encoded(Image.new("RGB", (5000, 5000), "red"), "PNG")
    long = {"max_tokens": 900, "ignore_eos": True, "stream": stream}
    clients: list[socket.socket] = []

    def send(data: bytes) -> None:
        clients.append(connect(omni.url))
        clients[-1].sendall(request_bytes(CHATS, body(part("image", data), **long)))

    for _ in range(4):
        send(drawn("blue"))
    until(lambda: counts(omni)[0] > 0)
    for number in range(16):
        send(large + bytes([number, stream]))  # which no cache has
    until(lambda: load(omni) > 4)
    running = counts(omni)[0]
    for client in clients:
        client.close()
    assert running < len(clients), "none is read any more"
    assert until(lambda: is_free(omni) and load(omni) == 0) < MOST_SECONDS_TO_FREE
    seconds_of_question(http)
