"""Pages of other sites, and names of theirs that lead here, get nothing without a key."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from live_server import LiveServer
from octavo.config.server import AccessConfig, ListenConfig
from octavo.server.http.errors import HttpError
from octavo.server.http.listening import bind, is_local, is_loopback, unbind
from octavo.server.http.sites import SiteGuard
from server_faults import answer, connect, error_of, request_bytes

OWN_HOSTS = [
    *("localhost", "LOCALHOST", "localhost:8000", "localhost.", "localhost.:1", "app.localhost"),
    *("127.0.0.1", "127.0.0.1:9", "127.3.2.1", "[::1]", "[::1]:8000", "[0:0:0:0:0:0:0:1]"),
    "[::ffff:127.0.0.1]:80",
]
STRANGE_HOSTS = [
    *("evil.example", "evil.example:8000", "localhost.evil", "localhost.evil.", "evil.localhost.x"),
    *("127.0.0.1.evil", "127.0.0.1.nip.io:8000", "localhostevil", "evil-localhost", "::1", ""),
    *("10.0.0.1", "0.0.0.0", "[::]", "[::2]", "[::ffff:10.0.0.1]", "169.254.169.254", "localhost-"),
    *("xlocalhost", ".localhost.evil", "[evil]", "1.127.0.0", "128.0.0.1", "localhost%00.evil"),
]
OWN_ORIGINS = [
    *("http://localhost", "http://localhost:3000", "https://localhost:8443", "http://127.0.0.1:1"),
    *("http://[::1]:8000", "http://app.localhost"),
]
STRANGE_ORIGINS = [
    *("null", "https://evil.example", "http://localhost.evil", "http://evil.example:8000", "", "x"),
    *("http://127.0.0.1.evil", "http://[::1].evil", "http://localhost@evil", "file://", "://x"),
    *("tauri://localhost", "http://0.0.0.0:8000", "localhost", "http://", "http://localhost/evil"),
    *("https://evil.example, http://localhost", "chrome-extension://abc", "http:// localhost"),
]
LOCAL = SiteGuard(AccessConfig(), is_local=True, has_keys=False)


def code_of(guard: SiteGuard, **headers: str) -> str | None:
    """Why the request is refused; header names have their dashes as underscores."""
    made = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    try:
        guard.check(made)
    except HttpError as error:
        return f"{error.status} {error.code}"
    return None


@pytest.mark.parametrize("host", OWN_HOSTS)
def test_a_server_without_keys_answers_as_this_machine(host) -> None:
    assert code_of(LOCAL, host=host) is None


@pytest.mark.parametrize("host", STRANGE_HOSTS)
def test_names_that_others_let_lead_here_are_refused(host) -> None:
    assert code_of(LOCAL, host=host) == "403 host_not_allowed"
    keyed = SiteGuard(AccessConfig(), is_local=True, has_keys=True)
    public = SiteGuard(AccessConfig(), is_local=False, has_keys=False)
    assert code_of(keyed, host=host) is None  # no page has the key
    assert code_of(public, host=host) is None  # it may be this server's


@pytest.mark.parametrize("origin", OWN_ORIGINS)
def test_pages_of_this_machine_may_ask(origin) -> None:
    assert code_of(LOCAL, host="localhost:8000", origin=origin) is None


@pytest.mark.parametrize("origin", STRANGE_ORIGINS)
def test_pages_of_other_origins_are_refused(origin) -> None:
    assert code_of(LOCAL, host="localhost", origin=origin) == "403 origin_not_allowed"


def test_what_browsers_ask_for_another_sites_page_without_its_origin_is_refused() -> None:
    for dest in ("empty", "image", "script", "iframe", "websocket"):
        headers = {"sec_fetch_site": "cross-site", "sec_fetch_dest": dest}
        assert code_of(LOCAL, host="localhost", **headers) == "403 origin_not_allowed"
        assert (
            code_of(LOCAL, host="localhost", **{**headers, "sec_fetch_site": "same-site"}) is None
        )
    link = {"sec_fetch_site": "cross-site", "sec_fetch_dest": "document"}
    assert code_of(LOCAL, host="localhost", **link) is None
    assert code_of(LOCAL, host="localhost", origin="null", **link) == "403 origin_not_allowed"


def test_a_page_of_another_host_may_send_no_form_to_a_server_at_any_address() -> None:
    public = SiteGuard(AccessConfig(), is_local=False, has_keys=False)
    allowing = SiteGuard(AccessConfig(allowed_origins=("*",)), is_local=False, has_keys=False)
    keyed = SiteGuard(AccessConfig(), is_local=False, has_keys=True)
    evil = {"host": "box:8000", "origin": "https://evil.example"}
    for kind in ("multipart/form-data; boundary=x", "Multipart/Form-Data"):
        assert code_of(public, content_type=kind, **evil) == "403 origin_not_allowed"
        assert code_of(public, content_type=kind, host="box:8000", origin="http://box:8000") is None
        assert code_of(public, content_type=kind, host="box:8000") is None  # no page
        assert code_of(allowing, content_type=kind, **evil) is None
        assert code_of(keyed, content_type=kind, **evil) is None
    assert code_of(public, content_type="application/json", **evil) is None  # it had to ask first


def test_flags_add_hosts_and_origins() -> None:
    access = AccessConfig(
        allowed_hosts=("LLM.example", "host.docker.internal"), allowed_origins=("app://page",)
    )
    for is_local_, has_keys in ((True, False), (False, False), (True, True), (False, True)):
        guard = SiteGuard(access, is_local=is_local_, has_keys=has_keys)
        assert code_of(guard, host="llm.example:443") is None
        assert code_of(guard, host="localhost") is None
        assert code_of(guard, host="evil.example") == "403 host_not_allowed"
        for origin in ("app://page", "https://llm.EXAMPLE", "http://localhost:1"):
            assert code_of(guard, host="llm.example", origin=origin) is None
        refused = None if has_keys else "403 origin_not_allowed"
        assert code_of(guard, host="llm.example", origin="https://evil.example") == refused
    any_host = SiteGuard(AccessConfig(allowed_hosts=("*",)), is_local=True, has_keys=False)
    assert code_of(any_host, host="evil.example", origin="http://evil.example:1") is None
    assert (
        code_of(any_host, host="a.example", origin="http://b.example") == "403 origin_not_allowed"
    )
    any_page = SiteGuard(AccessConfig(allowed_origins=("*",)), is_local=True, has_keys=False)
    assert code_of(any_page, host="localhost", origin="null") is None
    assert code_of(any_page, host="evil.example", origin="null") == "403 host_not_allowed"
    named = SiteGuard(AccessConfig(), is_local=True, has_keys=False, own_host="box.internal")
    assert code_of(named, host="box.internal:8000", origin="http://box.internal:8000") is None


def test_the_address_that_is_listened_at_decides(tmp_path) -> None:
    socket_file = str(tmp_path / "socket")
    for listen, expected in (
        (ListenConfig(port=0), True),
        (ListenConfig(port=0, host="localhost"), True),
        (ListenConfig(port=0, host="127.0.0.2"), True),
        (ListenConfig(port=0, host="0.0.0.0"), False),
        (ListenConfig(port=0, host=""), False),
        (ListenConfig(uds=socket_file), False),
    ):
        listeners = bind(listen)
        assert is_local(listeners[0]) is expected, listen
        unbind(listen, listeners)
    assert is_loopback("::1")
    assert not is_loopback("::")


@pytest.fixture
def client(server: LiveServer) -> Iterator[socket.socket]:
    with connect(server.url) as made:
        yield made


ASKS = [
    request_bytes("/v1/models"),
    request_bytes("/health"),
    request_bytes("/no/such"),
    request_bytes("/tokenize", {"prompt": "a"}),
    request_bytes("/v1/messages", {}),
    request_bytes("/v1/models").replace(b"GET", b"OPTIONS"),
    request_bytes("/v1/models").replace(b"GET", b"HEAD"),
    request_bytes("/tokenize", {}, "access-control-request-method: POST").replace(
        b"POST /", b"OPTIONS /"
    ),
    request_bytes("/v1/models", None, "upgrade: websocket", "connection: upgrade",
                  "sec-websocket-version: 13", "sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA=="),
]  # fmt: skip


@pytest.mark.parametrize("ask", ASKS, ids=lambda ask: " ".join(ask.decode().split()[:2]))
def test_a_server_on_a_loopback_address_refuses_them_whatever_is_asked(client, ask) -> None:
    for sent in (
        ask.replace(b"host: localhost", b"host: evil.example:8000"),
        ask.replace(b"host: localhost", b"host: localhost\r\norigin: https://evil.example"),
        ask.replace(b"host: localhost", b"host: localhost\r\norigin: null"),
    ):
        assert sent != ask
        client.sendall(sent.replace(b"HEAD", b"GET"))
        status, headers, data = answer(client)
        assert status == 403
        assert not [name for name in headers if name.startswith("access-control")]
        if b"/v1/messages" in ask:
            assert b"permission_error" in data
        else:
            assert error_of(data)["code"] in ("host_not_allowed", "origin_not_allowed")


KINDS = ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]
KINDS += ["text/plain; application/json", "text/json", "application/jsonx", "x/json, text/plain"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_body_that_a_page_may_send_unasked_is_a_415(server, http, kind) -> None:
    paths = http.get("/openapi.json").json()["paths"]
    asked = [path for path, methods in paths.items() if "requestBody" in methods.get("post", {})]
    assert len(asked) > 8
    for path in asked:
        headers = {"content-type": kind} if kind else {}
        reply = http.post(path, content=b"{}", headers=headers)
        assert reply.status_code == 415, path
    assert (
        http.post(
            "/tokenize", content=b"{}", headers={"content-type": "application/json; charset=utf-8"}
        ).status_code
        == 400
    )
