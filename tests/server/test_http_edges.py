"""What a connection is told of bytes that are no request, and what stays of those before them."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from typing import Any
from unittest.mock import MagicMock

import pytest

from http_protocols import maker_of_protocols, transport_of
from octavo.config.server import LimitConfig
from octavo.server.http import protocol as http_protocol
from server_faults import answer, connect, error_of, is_closed, request_bytes, until

TOKENIZE, MESSAGES = "/tokenize", "/v1/messages"
GOOD = request_bytes(TOKENIZE, {"prompt": "Hello"})
CHUNKED = (
    b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    b"transfer-encoding: chunked\r\n%b\r\n"
)
NO_REQUEST = {
    "a method that is none": b"FETCH %b HTTP/1.1\r\n\r\n",
    "another version": b"GET %b HTTP/9.9\r\nhost: x\r\n\r\n",
    "the next version": b"GET %b HTTP/2.0\r\nhost: x\r\n\r\n",
    "an old version": b"GET %b HTTP/0.9\r\nhost: x\r\n\r\n",
    "no version": b"GET %b\r\nhost: x\r\n\r\n",
    "no version and no headers": b"GET %b\r\n\r\n",
    "no host": b"GET %b HTTP/1.1\r\n\r\n",
    "no host and an upgrade": b"GET %b HTTP/1.1\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n",
    "two hosts": b"GET %b HTTP/1.1\r\nhost: x\r\nHost: x\r\n\r\n",
    "two hosts of the old version": b"GET %b HTTP/1.0\r\nhost: x\r\nhost: y\r\n\r\n",
    "two hosts in one": b"GET %b HTTP/1.1\r\nhost: x, y\r\n\r\n",
    "a host with a path": b"GET %b HTTP/1.1\r\nhost: x/y\r\n\r\n",
    "a host with a user": b"GET %b HTTP/1.1\r\nhost: x@y\r\n\r\n",
    "a host with a wrong port": b"GET %b HTTP/1.1\r\nhost: x:y\r\n\r\n",
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
    asks = b"host: localhost\r\nconnection: upgrade, http2-settings\r\nupgrade: h2c\r\n"
    asks += b"http2-settings: AAMA"
    with connect(server.url) as client:
        client.sendall(GOOD.replace(b"host: localhost", asks) + GOOD)
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


@pytest.mark.parametrize(
    ("status", "head", "more"),
    [
        (400, CHUNKED % (b"/tokenize", b"") + b"zz\r\n", b"{}\r\n"),
        (411, b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
         b"content-type: application/json\r\n\r\n", b"{}"),
        (413, b"POST /tokenize HTTP/1.0\r\ncontent-type: application/json\r\n"
         b"content-length: 99999999\r\n\r\n", b"[]"),
        (415, b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
         b"content-type: text/csv\r\ncontent-length: 90000\r\n\r\n", b"[]"),
    ],
)  # fmt: skip
def test_a_client_that_still_sends_behind_its_answer_can_read_it(
    server, status, head, more
) -> None:
    with connect(server.url) as client:
        client.sendall(head)
        client.recv(1, socket.MSG_PEEK)  # the answer is there
        for _ in range(5):  # a server that had closed would answer each with a reset
            client.sendall(more * 1_000)
            time.sleep(0.02)
        assert answer(client)[0] == status
        assert client.recv(1) == b""


def test_what_no_app_has_answered_is_counted_and_a_line_of_the_log(server) -> None:
    def count() -> float:
        with server.client() as http:
            samples = http.get("/metrics").text
        labels = r'method="\(other\)",route="/tokenize",status="400"'
        found = re.search(rf"http_requests_total{{[^}}]*{labels}[^}}]*}} (\S+)", samples)
        return 0 if found is None else float(found[1])

    before, names = count(), []
    for target in (b"/tokenize", b"/x\x1b[31m\x85?secret"):
        with connect(server.url) as client:
            client.sendall(b"FETCH %b HTTP/1.1\r\n\r\n" % target)
            status, headers, _ = answer(client)
        assert status == 400
        names.append(headers["x-request-id"])
    assert count() == before + 1
    until(lambda: names[1] in server.log.read_text())
    lines = [line for line in server.log.read_text().splitlines() if line.endswith(tuple(names))]
    assert "- /tokenize 400 " in lines[0]
    assert re.search(r" - /x\?\[31m\? 400 \d+\.\d ms ", lines[1])


@pytest.mark.parametrize("has_tls", [False, True])
async def test_a_client_that_drips_behind_its_answer_is_let_go(monkeypatch, has_tls) -> None:
    monkeypatch.setattr(http_protocol, "LINGER_SECONDS", 0.1)
    protocol = maker_of_protocols(LimitConfig())()
    transport = transport_of(protocol)
    transport.can_write_eof.return_value = not has_tls
    protocol.data_received(b"no request\r\n\r\n")
    assert transport.write_eof.called == (not has_tls)
    assert not transport.close.called
    async with asyncio.timeout(10):
        while not transport.close.called:
            protocol.data_received(b"x")
            await asyncio.sleep(0.01)
    protocol.connection_lost(None)


async def test_no_request_is_begun_behind_an_answer_that_closes() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        begun.append(scope["path"])
        await asyncio.sleep(0)
        headers = [(b"content-length", b"0"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    begun: list[str] = []
    protocol = maker_of_protocols(LimitConfig(), app)()
    transport = transport_of(protocol)
    protocol.data_received(b"GET /a HTTP/1.1\r\nhost:\r\n\r\nGET /b HTTP/1.1\r\nhost:\r\n\r\n")
    while not transport.write_eof.called:
        await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0)
    assert begun == ["/a"]
    protocol.connection_lost(None)


async def test_no_more_is_read_behind_an_answer_than_a_body_may_have() -> None:
    protocol = maker_of_protocols(LimitConfig(max_body_mib=1))()
    transport = transport_of(protocol)
    protocol.data_received(b"no request\r\n\r\n")
    for _ in range(16):
        protocol.data_received(b"x" * 65_536)
    assert not transport.close.called
    protocol.data_received(b"x")
    assert transport.close.called
    protocol.connection_lost(None)


async def test_of_many_clients_that_still_send_the_first_makes_room(monkeypatch) -> None:
    monkeypatch.setattr(http_protocol, "MAX_LINGERING", 2)
    make = maker_of_protocols(LimitConfig())
    protocols = [make() for _ in range(5)]
    transports = [transport_of(protocol) for protocol in protocols]
    for protocol in protocols:
        protocol.data_received(b"no request\r\n\r\n")
    assert [t.close.called for t in transports] == [True, True, True, False, False]
    for protocol in protocols:
        protocol.connection_lost(None)


async def test_a_long_last_answer_is_not_cut_while_its_client_reads_slowly(monkeypatch) -> None:
    monkeypatch.setattr(http_protocol, "LINGER_SECONDS", 0.05)
    body = bytes(16 * 2**20)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    make = maker_of_protocols(LimitConfig(), app)
    server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.5)  # ten times what a client has that still sends
        assert len(await reader.read()) == len(body)
        writer.close()


@pytest.mark.parametrize("rest", [b"{}", b"{}\r\n", b"{"], ids=["body", "blanks", "half a body"])
async def test_a_connection_that_was_answered_early_does_not_stay_for_ever(rest) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    protocol = maker_of_protocols(LimitConfig(), app, timeout_keep_alive=1)()
    gone = asyncio.Event()
    transport = MagicMock()
    transport.is_closing.return_value = False
    transport.abort = gone.set
    protocol.connection_made(transport)
    protocol.data_received(b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n")
    while not protocol.cycle.response_complete:
        await asyncio.sleep(0)
    protocol.data_received(rest)
    await asyncio.wait_for(gone.wait(), 10)
