"""What may be fetched, from where, and how much of it; from a local server, without a network."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import octavo
from octavo.config.media import MediaConfig
from octavo.multimodal.budget import MediaBudget
from octavo.multimodal.fetch import MediaFetcher
from octavo_registry import MediaError, MediaLimitError

PUBLIC = "93.184.216.34"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"


class World:
    """A network of one server on this machine, which stands at whatever address is connected to."""

    def __init__(self) -> None:
        self.answers: dict[str, bytes | Callable[[socket.socket], None]] = {}
        self.addresses: dict[str, list[str]] = {}
        self.connected: list[tuple[str, int]] = []
        self.requests: list[bytes] = []
        self.resolved: list[str] = []
        self.tls: ssl.SSLContext | None = None
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._serve, daemon=True).start()

    def resolve(self, host: str, port: int) -> list[str]:
        self.resolved.append(host)
        return self.addresses.get(host, [PUBLIC])

    def connect(self, address: str, port: int, timeout_seconds: float) -> socket.socket:
        self.connected.append((address, port))
        return socket.create_connection(self._listener.getsockname(), timeout_seconds)

    def close(self) -> None:
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        if self.tls is not None:
            try:
                connection = self.tls.wrap_socket(connection, server_side=True)
            except OSError:  # the client does not trust it
                return
        with connection:
            request = b""
            while b"\r\n\r\n" not in request:
                piece = connection.recv(65536)
                if not piece:
                    return
                request += piece
            self.requests.append(request)
            answer = self.answers.get(request.split()[1].decode(), OK)
            try:
                if callable(answer):
                    answer(connection)
                else:
                    connection.sendall(answer)
            except OSError:  # the client has left
                return


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.close()


def fetcher(world: World, *domains: str, **config: object) -> Callable[[str], bytes]:
    settings = MediaConfig(allowed_media_domains=domains or ("media.example",), **config)
    reads = MediaFetcher(settings, resolve=world.resolve, connect=world.connect)
    return lambda url: reads.fetch(url, MediaBudget(settings))


def test_a_url_of_an_allowed_host_is_read(world) -> None:
    assert fetcher(world)("http://MEDIA.example:8080/a/b.png?size=1#part") == b"hello"
    assert world.connected == [(PUBLIC, 8080)]
    assert world.requests[0].startswith(
        b"GET /a/b.png?size=1 HTTP/1.1\r\nHost: MEDIA.example:8080\r\n"
    )
    assert b"Accept-Encoding: identity\r\n" in world.requests[0]
    assert f"User-Agent: octavo/{octavo.version.__version__}\r\n".encode() in world.requests[0]


@pytest.mark.parametrize(
    ("domain", "host", "allowed"),
    [
        ("a.example", "a.example", True),
        ("a.example", "a.example.", True),
        ("a.example", "A.EXAMPLE", True),
        ("A.example", "a.example", True),
        ("a.example", "b.a.example", False),
        ("a.example", "aa.example", False),
        ("a.example", "a.example.evil.org", False),
        ("*.a.example", "b.a.example", True),
        ("*.a.example", "a.example", False),
        ("*.a.example", "ba.example", False),
    ],
)
def test_a_host_is_allowed_by_its_whole_name(world, domain, host, allowed) -> None:
    read = fetcher(world, domain)
    if allowed:
        assert read(f"http://{host}/") == b"hello"
    else:
        with pytest.raises(MediaError, match="may not come from"):
            read(f"http://{host}/")
        assert world.resolved == []


@pytest.mark.parametrize(
    "url",
    [
        "http://evil.example/",
        "http://media.example@evil.example/",
        "http://evil.example\\@media.example/",
        "http://user:secret@media.example/",
        "http://media.example:0/",
        "http://media.example:99999/",
        "http://media.example:x/",
        "http://media.example/ HTTP/1.1\r\nX: y",
        "http://media.example/\u0130",
        "http://[::1/",
        "http:///path",
        "http:media.example",
        "HTTP://evil.example/",
        "ftp://media.example/",
        "gopher://media.example/",
        "photo.png",
        "",
    ],
)
def test_any_other_url_is_refused_before_anything_is_looked_up(world, url) -> None:
    with pytest.raises(MediaError):
        fetcher(world)(url)
    assert world.resolved == world.connected == []


def test_without_allowed_hosts_no_url_is_fetched(world) -> None:
    reads = MediaFetcher(MediaConfig(), resolve=world.resolve, connect=world.connect)
    with pytest.raises(MediaError, match="--allowed-media-domains"):
        reads.fetch("https://media.example/", MediaBudget(MediaConfig()))
    assert world.resolved == []


NOT_PUBLIC = [
    "127.0.0.1",
    "127.8.8.8",
    "0.0.0.0",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "192.0.2.1",
    "198.18.0.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "fe80::1",
    "fe80::1%eth0",
    "fc00::1",
    "fec0::1",
    "ff02::1",
    "2001:db8::1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "2002:7f00:1::",
    "2002:a00:1::1",
    "2001:0:4136:e378:8000:63bf:f5ff:fffe",
]


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_an_address_of_this_machine_or_its_network_is_refused(world, address) -> None:
    world.addresses["media.example"] = [address]
    with pytest.raises(MediaError, match="not public"):
        fetcher(world)("http://media.example/")
    assert world.connected == []


def test_one_private_address_among_public_ones_is_enough_to_refuse(world) -> None:
    world.addresses["media.example"] = [PUBLIC, "10.0.0.1"]
    with pytest.raises(MediaError, match="not public"):
        fetcher(world)("http://media.example/")
    assert world.connected == []


def test_a_name_that_changes_its_address_gains_nothing(world) -> None:
    """The name is looked up once, and what was checked is what is connected to."""
    changing = iter([[PUBLIC], ["127.0.0.1"]])
    world.resolve = lambda host, port: next(changing)  # type: ignore[method-assign]
    assert fetcher(world)("http://media.example/") == b"hello"
    assert world.connected == [(PUBLIC, 80)]


def redirect(to: str, status: int = 302) -> bytes:
    return f"HTTP/1.1 {status} Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n".encode()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_followed(world, status) -> None:
    world.answers["/a"] = redirect("/b?c", status)
    assert fetcher(world)("http://media.example/a") == b"hello"
    assert [request.split()[1] for request in world.requests] == [b"/a", b"/b?c"]


@pytest.mark.parametrize(
    "to",
    [
        "http://evil.example/",
        "//evil.example/",
        "file:///etc/passwd",
        "data:image/png;base64,AAAA",
        "http://inside.example/",
        "http://x:y@media.example/",
    ],
)
def test_a_redirect_is_under_the_same_rules(world, to) -> None:
    world.answers["/a"] = redirect(to)
    world.addresses["inside.example"] = ["10.0.0.1"]
    with pytest.raises(MediaError):
        fetcher(world, "media.example", "inside.example")("http://media.example/a")
    assert len(world.connected) == 1


def test_three_redirects_are_followed_and_no_more(world) -> None:
    for number in range(9):
        world.answers[f"/{number}"] = redirect(f"/{number + 1}")
    world.answers["/4"] = OK
    assert fetcher(world)("http://media.example/1") == b"hello"
    with pytest.raises(MediaError, match="more than 3 redirects"):
        fetcher(world)("http://media.example/0")
    assert len(world.requests) == 8


@pytest.mark.parametrize("length", [b"Content-Length: 99999999\r\n", b""])
def test_bytes_are_counted_while_they_arrive(world, length) -> None:
    sent = []

    def endless(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n" + length + b"\r\n")
        for _ in range(4000):
            connection.sendall(b"x" * 65536)
            sent.append(65536)

    world.answers["/"] = endless
    with pytest.raises(MediaLimitError, match="1 MiB in all"):
        fetcher(world, max_media_mib=1)("http://media.example/")
    assert sum(sent) < 64 << 20


def chunked(connection: socket.socket) -> None:
    connection.sendall(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"
    )


def test_a_body_in_chunks_is_put_together(world) -> None:
    world.answers["/"] = chunked
    assert fetcher(world)("http://media.example/") == b"hello"


@pytest.mark.parametrize(
    ("answer", "match"),
    [
        (b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n", "status 404"),
        (b"HTTP/1.1 206 Part\r\nContent-Length: 0\r\n\r\n", "status 206"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello", "5 of 9 bytes"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\nhello", "compressed"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nhe", "cannot be read"),
        (b"hello", "cannot be read"),
        (b"", "cannot be read"),
    ],
)
def test_an_answer_that_is_no_whole_body_is_an_error(world, answer, match) -> None:
    world.answers["/"] = answer
    with pytest.raises(MediaError, match=match):
        fetcher(world)("http://media.example/")


@pytest.mark.parametrize("where", ["nothing", "headers", "body"])
def test_a_host_that_drips_is_left_when_the_time_is_over(world, where) -> None:
    ended = threading.Event()

    def drip(connection: socket.socket) -> None:
        if where == "body":
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n")
        if where == "headers":
            connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
        while not ended.wait(0.02):
            if where != "nothing":
                connection.sendall(b"x")

    world.answers["/"] = drip
    began = time.monotonic()
    with pytest.raises(MediaError, match=r"did not answer in 0\.3 seconds"):
        fetcher(world, media_fetch_timeout=0.3)("http://media.example/")
    ended.set()
    assert time.monotonic() - began < 5


def test_a_redirect_to_what_is_no_url_is_an_error(world) -> None:
    world.answers["/a"] = redirect("http://[x/")
    with pytest.raises(MediaError, match=r"media\.example cannot be read"):
        fetcher(world)("http://media.example/a")


def test_an_address_that_swallows_leaves_time_for_the_next(world) -> None:
    connect = world.connect
    world.addresses["media.example"] = ["2606:4700::1111", "8.8.8.8", PUBLIC]
    given = []

    def swallow(address: str, port: int, timeout_seconds: float) -> socket.socket:
        given.append(timeout_seconds)
        if address == PUBLIC:
            return connect(address, port, timeout_seconds)
        raise TimeoutError

    world.connect = swallow  # type: ignore[method-assign]
    assert fetcher(world, media_fetch_timeout=60)("http://media.example/") == b"hello"
    assert given == pytest.approx([20, 30, 60], abs=5)


def test_the_next_address_is_tried_where_one_does_not_answer(world) -> None:
    connect = world.connect
    world.addresses["media.example"] = ["8.8.8.8", PUBLIC]

    def refuse(address: str, port: int, timeout_seconds: float) -> socket.socket:
        if address == "8.8.8.8":
            raise ConnectionRefusedError
        return connect(address, port, timeout_seconds)

    world.connect = refuse  # type: ignore[method-assign]
    assert fetcher(world)("http://media.example/") == b"hello"


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A key and what it signs for media.example, in one file."""
    path = tmp_path / "both.pem"
    made = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    names = ["-subj", "/CN=media.example", "-addext", "subjectAltName=DNS:media.example"]
    files = ["-keyout", str(path), "-out", str(tmp_path / "cert.pem")]
    subprocess.run(["openssl", *made, *names, *files], check=True, capture_output=True)
    path.write_bytes(path.read_bytes() + (tmp_path / "cert.pem").read_bytes())
    return path


def test_https_is_spoken_with_a_host_that_can_prove_its_name(
    world, certificate, monkeypatch
) -> None:
    world.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    world.tls.load_cert_chain(certificate)
    with pytest.raises(MediaError, match=r"media\.example cannot be read: SSL"):
        fetcher(world)("https://media.example/")
    trusting = ssl.create_default_context(cafile=str(certificate))
    monkeypatch.setattr(ssl, "create_default_context", lambda: trusting)
    assert fetcher(world)("https://media.example/") == b"hello"
    with pytest.raises(MediaError, match=r"cannot be read: SSL.*Hostname mismatch"):
        fetcher(world, "other.example")("https://other.example/")
    assert world.connected == [(PUBLIC, 443)] * 3
