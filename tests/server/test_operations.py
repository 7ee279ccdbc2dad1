"""What a server bounds, where it listens, and how it is configured."""

from __future__ import annotations

import json
import re
import select
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from live_server import LiveServer, running_server
from server_faults import (
    answer,
    body,
    connect,
    error_of,
    is_closed,
    long_body,
    request_bytes,
    until,
)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("operations")
    config = folder / "octavo.yaml"
    config.write_text(
        "model: octavo/tiny\nport: 0\ndtype: float32\nnum-threads: 1\nmax_num_seqs: 4\n"
        "max_queued_requests: 8\nmax_connections: 40\nmax_header_kib: 16\n"
        "body_timeout_seconds: 1\nmax_total_body_mib: 4\nmax_body_mib: 3\naccess_log: false\n"
        "access_log_skip: [/health]\n"
    )
    with running_server(folder / "log", "--config", str(config), base=()) as server:
        yield server


def bytes_to(server: LiveServer, sent: bytes) -> tuple[int, dict[str, str], bytes]:
    with connect(server.url) as client:
        client.sendall(sent)
        return answer(client)


HEADER_ATTACKS = {
    "one long header": b"GET /health HTTP/1.1\r\nhost: localhost\r\nx: " + b"a" * 10**6,
    "headers without end": b"GET /health HTTP/1.1\r\nhost: localhost\r\n" + b"x: y\r\n" * 10**5,
    "a long path": b"GET /" + b"a" * 10**6,
    "no HTTP": b"\x16\x03\x01" + bytes(100),
    "trailers without end": b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n"
    b"transfer-encoding: chunked\r\ncontent-type: application/json\r\n\r\n0\r\n"
    + b"x: y\r\n"
    * 10**5,
    "a chunk's extension": b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n"
    b"transfer-encoding: chunked\r\ncontent-type: application/json\r\n\r\n1;" + b"x" * 10**6,
}


@pytest.mark.parametrize("attack", HEADER_ATTACKS)
def test_headers_are_bounded_while_they_arrive(live, attack) -> None:
    with connect(live.url) as client:
        try:
            client.sendall(HEADER_ATTACKS[attack])
        except ConnectionError:
            return  # it was closed before all had been sent
        if "trailers" in attack or "chunk" in attack:
            assert is_closed(client)
            return
        try:
            status, _, data = answer(client)
        except ConnectionError:
            return
        assert status == 400
        assert error_of(data)["type"] == "invalid_request_error"


def test_more_headers_than_allowed_are_a_400(live) -> None:
    many = [f"x-{i}: y" for i in range(120)]
    status, _, data = bytes_to(live, request_bytes("/health", None, *many))
    assert (status, "headers" in error_of(data)["message"]) == (400, True)


def test_a_body_in_chunks_of_a_byte_is_taken(live) -> None:
    data = json.dumps(body(max_tokens=1)).encode()
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in data) + b"0\r\n\r\n"
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n"
    status, _, _ = bytes_to(live, head + b"content-type: application/json\r\n\r\n" + chunks)
    assert status == 200


@pytest.mark.parametrize("sent", [b"", b"GET /hea", request_bytes("/v1/completions", body())[:-5]])
def test_slow_writers_are_let_go(live, sent) -> None:
    with connect(live.url) as client:
        client.sendall(sent)
        began = time.monotonic()
        status, _, data = answer(client)
        assert status == 408
        error_of(data)
        assert time.monotonic() - began < 30


def test_bodies_are_bounded_alone_and_together(live) -> None:
    head = request_bytes("/v1/completions", None).replace(b"GET", b"POST")
    large = head.replace(b"content-length: 0", b"content-length: 4000000")
    status, _, data = bytes_to(live, large)
    assert (status, error_of(data)["type"]) == (413, "invalid_request_error")
    part = head.replace(b"content-length: 0", b"content-length: 2500000")
    with connect(live.url) as first, connect(live.url) as second:
        for client in (first, second):
            client.sendall(part + b" " * 2_400_000)
        codes = []
        for client in (first, second):
            status, _, data = answer(client)
            codes.append(status)
        assert 503 in codes
    assert live.post("/v1/completions", body()).status_code == 200


def test_connections_above_the_limit_are_told_to_come_back(live) -> None:
    held = [connect(live.url) for _ in range(40)]
    try:
        status, headers, data = bytes_to(live, request_bytes("/health"))
        assert (status, headers["retry-after"]) == (503, "1")
        told = error_of(data)
        assert (told["type"], told["code"]) == ("service_unavailable_error", "overloaded")
    finally:
        for connection in held:
            connection.close()
    until(lambda: live.get("/health").status_code == 200)


def num_running(live: LiveServer) -> int:
    (line,) = re.findall(r"^octavo:num_requests_running.* (\S+)$", live.get("/metrics").text, re.M)
    return int(float(line))


def test_an_overloaded_server_refuses_at_once_and_finishes_what_it_took(live) -> None:
    ask = request_bytes("/v1/completions", long_body(max_tokens=100))
    sent_at: dict[socket.socket, float] = {}
    refused_after: list[float] = []
    num_finished = 0
    with ExitStack() as stack:
        clients = [stack.enter_context(connect(live.url)) for _ in range(30)]
        for number, client in enumerate(clients):  # four rows, eight places in the queue
            if number == 4:
                until(lambda: num_running(live) == 4)
            sent_at[client] = time.monotonic()
            client.sendall(ask)
        while sent_at:
            ready, _, _ = select.select(list(sent_at), [], [], 120)
            assert ready
            now = time.monotonic()
            for client in ready:
                began = sent_at.pop(client)
                status, headers, data = answer(client)
                if status == 200:
                    num_finished += 1
                    continue
                refused_after.append(now - began)
                assert (status, headers["retry-after"]) == (503, "1")
                assert error_of(data)["code"] == "overloaded"
    assert num_finished >= 12
    assert min(refused_after) < 0.05  # a machine that is busy with other tests is later


@pytest.mark.slow
def test_a_unix_socket_is_served_kept_to_one_server_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with running_server(tmp_path / "log", "--uds", str(path)) as server:
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path))) as http:
            assert http.post("http://x/v1/completions", json=body(), timeout=120).status_code == 200
        second = running_server(tmp_path / "log2", "--uds", str(path))
        with pytest.raises(RuntimeError, match="another process listens at"), second:
            pass
        server.process.terminate()
        assert server.process.wait(60) == 0
    assert not path.exists()


def test_a_port_in_use_is_known_before_the_model_is_loaded(live) -> None:
    port = live.url.rpartition(":")[2]
    for workers in ("1", "2"):
        command = [sys.executable, "-m", "octavo", "serve", "octavo/tiny", "--port", port]
        ended = subprocess.run(
            [*command, "--api-workers", workers], capture_output=True, text=True, timeout=60
        )
        assert ended.returncode == 2
        assert "choose another --port" in ended.stderr
        assert "engine" not in ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize("asks_for_certificates", [False, True])
def test_tls_is_served_and_may_ask_for_certificates(tmp_path: Path, asks_for_certificates) -> None:
    made = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    cert, key = str(tmp_path / "cert"), str(tmp_path / "key")
    alternative = ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(
        ["openssl", *made, *alternative, "-keyout", key, "-out", cert],
        check=True,
        capture_output=True,
    )
    flags = ["--ssl-certfile", cert, "--ssl-keyfile", key]
    if asks_for_certificates:
        flags += ["--ssl-ca-certs", cert]
    with running_server(tmp_path / "log", *flags) as server:
        assert server.url.startswith("https://")
        trusting = ssl.create_default_context(cafile=cert)
        if asks_for_certificates:
            with pytest.raises(httpx.TransportError):
                httpx.get(f"{server.url}/health", verify=trusting, timeout=60)
            trusting.load_cert_chain(cert, key)
        assert httpx.get(f"{server.url}/health", verify=trusting, timeout=60).status_code == 200
