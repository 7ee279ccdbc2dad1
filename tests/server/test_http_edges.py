"""What a connection is told of bytes that are no request, and what stays of those before them."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from typing import Any
from unittest.mock import MagicMock

import pytest
import uvicorn
from uvicorn.server import ServerState

from octavo.config.server import LimitConfig
from octavo.server.http_protocol import limited_protocol
from server_faults import answer, connect, error_of, is_closed, request_bytes

TOKENIZE, MESSAGES = "/tokenize", "/v1/messages"
GOOD = request_bytes(TOKENIZE, {"prompt": "Hello"})
CHUNKED = (
    b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    b"transfer-encoding: chunked\r\n%b\r\n"
)
NO_REQUEST = {
    "a method that is none": b"FETCH %b HTTP/1.1\r\n\r\n",
    "another version": b"GET %b HTTP/9.9\r\n\r\n",
    "a header without a colon": b"GET %b HTTP/1.1\r\nx\r\n\r\n",
    "a control character": b"GET %b HTTP/1.1\r\nx: a\0b\r\n\r\n",
    "two lengths": b"POST %b HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
    "a length that is none": b"POST %b HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
    "a length and chunks": CHUNKED.replace(b"%b\r\n", b"content-length: 5\r\n\r\n"),
    "a long path": b"GET %b" + b"/x" * 40_000 + b" HTTP/1.1\r\n\r\n",
    "headers without end": b"GET %b HTTP/1.1\r\n" + b"x: y\r\n" * 20_000,
}
BROKEN_BODIES = {
    "a chunk's size that is none": b"zz\r\n{}\r\n0\r\n\r\n",
    "a chunk's size below zero": b"-5\r\nhello\r\n0\r\n\r\n",
    "a chunk's size without end": b"F" * 18 + b"\r\na",
    "a chunk that is longer than its size": b"2\r\n{}{}\r\n0\r\n\r\n",
    "long trailers": b"2\r\n{}\r\n0\r\nx: " + b"y" * 70_000 + b"\r\n\r\n",
    "many trailers": b"2\r\n{}\r\n0\r\n" + b"x: y\r\n" * 20_000 + b"\r\n",
}


def check_error(path: str, data: bytes) -> dict[str, Any]:
    """Return the error, which has the shape that the path's clients read."""
    if path != MESSAGES:
        return error_of(data)
    told: dict[str, Any] = json.loads(data)
    assert set(told) == {"type", "error"}
    assert set(told["error"]) == {"type", "message"}
    return dict(told["error"])


def read_answer(client: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """One answer, and not a byte of the next."""
    data = b""
    while not data.endswith(b"\r\n\r\n"):
        byte = client.recv(1)
        assert byte, data
        data += byte
    status, headers = int(data.split()[1]), {}
    for line in data.decode().split("\r\n")[1:-2]:
        name, _, value = line.partition(": ")
        headers[name] = value
    body = b""
    while len(body) < int(headers.get("content-length", 0)):
        body += client.recv(int(headers["content-length"]) - len(body))
    return status, headers, body


@pytest.mark.parametrize("path", [TOKENIZE, MESSAGES])
@pytest.mark.parametrize("kind", NO_REQUEST)
def test_what_is_no_request_is_a_400_in_the_paths_shape(server, kind, path) -> None:
    with connect(server.url) as client:
        client.sendall(NO_REQUEST[kind].replace(b"%b", path.encode(), 1))
        status, headers, data = answer(client)
        assert (status, headers["connection"]) == (400, "close")
        assert headers["x-request-id"]
        assert check_error(path, data)["type"] == "invalid_request_error"
        assert is_closed(client)


@pytest.mark.parametrize("path", [TOKENIZE, MESSAGES])
@pytest.mark.parametrize("kind", BROKEN_BODIES)
def test_a_body_that_cannot_be_read_is_its_requests_400(server, kind, path) -> None:
    with connect(server.url) as client:
        client.sendall(CHUNKED % (path.encode(), b"x-request-id: mine\r\n") + BROKEN_BODIES[kind])
        status, headers, data = answer(client)
        assert (status, headers["x-request-id"]) == (400, "mine")
        assert headers["connection"] == "close"
        assert check_error(path, data)["message"]
        assert is_closed(client)


@pytest.mark.parametrize("coding", [b"gzip", b"gzip, chunked"])
def test_a_body_that_is_packed_on_its_way_is_a_400(server, coding) -> None:
    head = CHUNKED.replace(b"chunked", coding) % (TOKENIZE.encode(), b"")
    with connect(server.url) as client:
        client.sendall(head + b'12\r\n{"prompt": "Hello"}\r\n0\r\n\r\n')
        status, _, data = answer(client)
        assert status == 400
        assert "ransfer-" in error_of(data)["message"]


def test_a_body_without_a_length_is_a_411_and_not_another_request(server) -> None:
    lengthless = GOOD.replace(b"content-length: 19\r\n", b"")
    assert lengthless != GOOD
    with connect(server.url) as client:
        client.sendall(lengthless)
        status, headers, data = read_answer(client)
        assert (status, headers["connection"]) == (411, "close")
        assert "content-length" in error_of(data)["message"]
        assert client.recv(1) == b""


@pytest.mark.parametrize("stream", [False, True])
def test_what_follows_a_request_does_not_take_its_answer(server, stream) -> None:
    body = {"prompt": "Hello", "max_tokens": 30, "stream": stream, "ignore_eos": True}
    with connect(server.url) as client:
        client.sendall(request_bytes("/v1/completions", body) + b"and so on\r\n\r\n")
        client.settimeout(30)
        data = b""
        while more := client.recv(65536):
            data += more
    first, _, rest = data.partition(b"HTTP/1.1 400 Bad Request\r\n")
    assert first.startswith(b"HTTP/1.1 200 OK\r\n")
    assert first.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n" if stream else b"}}")
    error_of(rest.partition(b"\r\n\r\n")[2])


def test_all_requests_of_a_connection_are_answered_before_it_ends(server) -> None:
    with connect(server.url) as client:
        client.sendall(GOOD * 3 + GOOD.replace(b"content-length: 19", b"content-length: 18"))
        statuses = [read_answer(client)[0] for _ in range(5)]
        assert statuses == [200, 200, 200, 400, 400]  # a cut body, and what is left of it
        assert client.recv(1) == b""


def test_short_trailers_are_passed_over(server) -> None:
    chunk = b'13\r\n{"prompt": "Hello"}\r\n0\r\nx: y\r\n\r\n'
    with connect(server.url) as client:
        for _ in range(2):
            client.sendall(CHUNKED % (TOKENIZE.encode(), b"") + chunk)
            assert read_answer(client)[0] == 200


def test_an_upgrade_to_anything_is_answered_as_it_stands(server) -> None:
    asks = b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMA\r\nhost: x"
    with connect(server.url) as client:
        client.sendall(GOOD.replace(b"host: x", asks) + GOOD)
        assert [read_answer(client)[0] for _ in range(2)] == [200, 200]


def test_a_tunnel_is_refused(server) -> None:
    with connect(server.url) as client:
        client.sendall(b"CONNECT example.org:443 HTTP/1.1\r\nhost: example.org:443\r\n\r\n")
        status, _, data = answer(client)
        assert (status, "proxy" in error_of(data)["message"]) == (400, True)


def test_a_client_that_sends_too_much_can_read_why(server) -> None:
    with connect(server.url) as client:
        client.sendall(NO_REQUEST["headers without end"])
        for _ in range(5):  # a server that had closed would answer each with a reset
            client.sendall(b"x: y\r\n" * 10_000)
            time.sleep(0.02)
        assert answer(client)[0] == 400


@pytest.mark.parametrize("rest", [b"{}", b"{}\r\n", b"{"], ids=["body", "blanks", "half a body"])
async def test_a_connection_that_was_answered_early_does_not_stay_for_ever(rest) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    config = uvicorn.Config(app, ws="none", lifespan="off", timeout_keep_alive=1)
    config.load()
    protocol = limited_protocol(LimitConfig())(
        config, ServerState(), {}, asyncio.get_running_loop()
    )
    gone = asyncio.Event()
    transport = MagicMock()
    transport.is_closing.return_value = False
    transport.abort = gone.set
    protocol.connection_made(transport)
    protocol.data_received(b"POST / HTTP/1.1\r\ncontent-length: 2\r\n\r\n")
    while not protocol.cycle.response_complete:
        await asyncio.sleep(0)
    protocol.data_received(rest)
    await asyncio.wait_for(gone.wait(), 10)
