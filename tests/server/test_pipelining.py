"""Requests that come before the one before them is answered: many, and of clients that leave."""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from http_protocols import maker_of_protocols, transport_of
from octavo.config.server import LimitConfig
from server_faults import answer, children, connect, request_bytes, resident_mib, until

ASK = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
POST = b"POST /%d HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b"
CHUNKED = b"POST /%d HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n"


@pytest.mark.parametrize("ask", [ASK, b"GET /health HTTP/1.1\r\n\r\n"], ids=["whole", "no host"])
@pytest.mark.parametrize("reads", [True, False])
def test_floods_of_requests_take_no_memory_and_let_others_be_answered(server, ask, reads) -> None:
    pids = [server.process.pid, *children(server.process.pid)]
    before, most, slowest = resident_mib(pids), 0.0, 0.0
    flood = memoryview(ask * (2**20 // len(ask)))
    with ExitStack() as stack:
        clients = {stack.enter_context(connect(server.url)): 0 for _ in range(20)}
        for client in clients:
            client.setblocking(False)
        end = time.monotonic() + 3
        while time.monotonic() < end:
            for client, sent in clients.items():
                with suppress(OSError):
                    clients[client] += client.send(flood[sent:])
                with suppress(OSError):
                    while reads and client.recv(2**18):
                        pass
            began = time.monotonic()
            with connect(server.url) as other:
                other.sendall(ASK)
                assert answer(other)[0] == 200
            slowest = max(slowest, time.monotonic() - began)
            most = max(most, resident_mib(pids))
    assert most - before <= 64
    assert slowest < 1


def test_requests_that_wait_are_bounded_for_each_connection() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.Event().wait()

    async def count(*parts: bytes) -> tuple[int, bool]:
        protocol = maker_of_protocols(LimitConfig(), app)()
        transport = transport_of(protocol)
        for part in parts:
            protocol.data_received(part)
        num_waiting, is_paused = len(protocol.pipeline), transport.pause_reading.called
        protocol.connection_lost(None)
        return num_waiting, is_paused

    many = ASK * 1_000
    body = POST % (1, 5, b"hello")
    for sent in (many, body + many, b"\r\n" + many):
        for cut in (0, 1, 4, len(ASK) - 2, len(ASK) - 1, len(ASK), len(body) - 1):
            num_waiting, is_paused = asyncio.run(count(sent[:cut], sent[cut:]))
            assert 1 <= num_waiting <= 2, (sent[:80], cut)
            assert is_paused
    half = b"x" * 5_000 + b"\n\n"  # comes with the end of its headers, and looks like one
    head, begin = (POST % (1, 10_000, half)).split(b"\r\n\r\n")
    rest = b"x" * (10_000 - len(half)) + many
    assert asyncio.run(count(head + b"\r\n", b"\r\n" + begin, rest)) == (1, True)
    in_chunks = asyncio.run(count(CHUNKED % (1, 5, b"hello") + many))
    assert in_chunks[0] <= 1024 / len(ASK)
    assert asyncio.run(count(ASK)) == (0, False)


def test_requests_that_wait_are_bounded_over_all_connections() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.Event().wait()

    open_socket, other = socket.socketpair()

    def read_once(protocol: Any) -> int:
        room = protocol.get_buffer(-1)
        room[:] = (ASK * (len(room) // len(ASK) + 1))[: len(room)]
        protocol.buffer_updated(len(room))
        return len(room)

    async def main() -> None:
        make = maker_of_protocols(LimitConfig(), app)
        protocols = [make() for _ in range(1_000)]
        for protocol in protocols:
            transport = transport_of(protocol)
            transport.get_extra_info.return_value = open_socket
            assert read_once(protocol) >= 4096  # none is left out
            assert transport.pause_reading.called
        sizes = [len(protocol._ahead.obj) for protocol in protocols]
        assert 32 * 2**20 <= sum(sizes) <= 64 * 2**20 + 4096 * len(sizes)
        assert all(sizes)
        for protocol in protocols:
            protocol.connection_lost(None)
        late = make()
        transport_of(late)
        assert read_once(late) == 2**18
        assert len(late._ahead.obj) == 2**18
        late.connection_lost(None)

    asyncio.run(main())
    open_socket.close()
    other.close()


@pytest.mark.parametrize("cut", [1, 7, 64, 1000, 10**6])
async def test_all_that_come_at_once_are_answered_in_their_order(cut) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = bytearray()
        is_whole = False
        while not is_whole:
            message = await receive()
            body += message["body"]
            is_whole = not message["more_body"]
        told = f"{scope['path']} {len(body)};".encode()
        headers = [(b"content-length", b"%d" % len(told))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": told})

    lines = b"\r\n\r\n" * 40
    made = [POST % (0, 0, b""), CHUNKED % (1, len(lines), lines), POST % (2, len(lines), lines)]
    made += [POST % (3, 3_000, bytes(3_000)), CHUNKED % (4, 3_000, bytes(3_000))]
    made += [b"GET /5 HTTP/1.1\r\nhost: x\r\n\r\n", POST % (6, 2, b"{}")]
    sent = b"".join(made * 3)
    server = await asyncio.get_running_loop().create_server(
        maker_of_protocols(LimitConfig(), app), "127.0.0.1", 0
    )
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        for start in range(0, len(sent), cut):
            writer.write(sent[start : start + cut])
            await asyncio.sleep(0)
        replies = b""
        while replies.count(b";") < 21:
            replies += await asyncio.wait_for(reader.read(65_536), 60)
        writer.close()
    told = [line for line in replies.split(b"\r\n") if line.startswith(b"/")]
    bodies = [part.partition(b";")[0] for part in told]
    assert bodies == [b"/0 0", b"/1 160", b"/2 160", b"/3 3000", b"/4 3000", b"/5 0", b"/6 2"] * 3


@pytest.mark.parametrize("how", ["close", "reset", "half"])
@pytest.mark.parametrize("behind", [ASK, ASK * 1_000], ids=["one waits", "many wait"])
async def test_a_client_that_leaves_while_others_of_its_requests_wait_is_noticed(
    how, behind
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        messages.append((await receive())["type"])
        begun.set()
        messages.append((await receive())["type"])
        ended.set()

    messages: list[str] = []
    begun, ended = asyncio.Event(), asyncio.Event()
    server = await asyncio.get_running_loop().create_server(
        maker_of_protocols(LimitConfig(), app), "127.0.0.1", 0
    )
    async with server:
        client = socket.create_connection(server.sockets[0].getsockname())
        client.setblocking(False)
        client.send(ASK + behind)
        await asyncio.wait_for(begun.wait(), 10)
        if how == "reset":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes([1, 0, 0, 0, 0, 0, 0, 0]))
        client.shutdown(socket.SHUT_WR) if how == "half" else client.close()
        await asyncio.wait_for(ended.wait(), 10)
        client.close()
    assert messages == ["http.request", "http.disconnect"]


def test_a_client_that_leaves_ends_what_the_engine_does_for_it(server) -> None:
    body = {"prompt": "a", "max_tokens": 900, "ignore_eos": True, "stream": True}
    ask = request_bytes("/v1/completions", body)
    until(lambda: server.get("/load").json() == {"server_load": 0})
    with connect(server.url) as client:
        client.sendall(ask * 3)
        assert answer(client)[0] == 200
    until(lambda: server.get("/load").json() == {"server_load": 0}, 10)
