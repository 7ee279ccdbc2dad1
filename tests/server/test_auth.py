"""Who may ask: keys on every path, pages of other origins, and what a log may be made to say."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from live_server import OCTAVO, LiveServer, running_server
from server_faults import answer, body, connect, error_of, request_bytes

KEY, FILE_KEY, VARIABLE_KEY = "sk-one", "sk-from-a-file", "sk-from-the-environment"
ORIGIN = "https://page.example"
OPEN = {"/health", "/ping"}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("auth")
    (folder / "keys").write_text(f"{FILE_KEY}\n\nsk-another\n")
    flags = ("--api-key", KEY, "--api-key", "sk-two", "--api-key-file", str(folder / "keys"))
    more = ("--allowed-origins", ORIGIN, "--root-path", "/llm", "--log-requests", "--log-outputs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OCTAVO_API_KEY", VARIABLE_KEY)
        starting = running_server(folder / "log", *flags, *more)
        server = starting.__enter__()
    yield LiveServer(server.url.removesuffix("/llm"), server.process, server.log)
    starting.__exit__(None, None, None)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_every_path_but_health_is_denied_without_a_key(live) -> None:
    with live.client() as http:
        described = http.get("/openapi.json", headers=bearer(KEY)).json()["paths"]
        asked = [(method, path) for path, methods in described.items() for method in methods]
        asked += [("get", path) for path in ("/docs", "/openapi.json", "/no/such", "//health", "/")]
        asked += [("options", "/v1/models"), ("post", "/health/"), ("get", "/v1/..%2fhealth")]
        assert len(asked) > 15
        for method, path in asked:
            for prefix in ("", "/llm"):
                reply = http.request(method, prefix + path.replace("{", "").replace("}", ""))
                if path in OPEN:
                    assert reply.status_code == 200, path
                    continue
                assert reply.status_code == 401, (method, path)
                if "messages" in path:  # Anthropic's shape
                    assert reply.json()["error"]["type"] == "authentication_error"
                else:
                    assert error_of(reply.content)["code"] == "invalid_api_key"
                assert reply.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("key", [KEY, "sk-two", FILE_KEY, "sk-another", VARIABLE_KEY])
def test_each_key_opens_in_either_header(live, key) -> None:
    with live.client() as http:
        assert http.get("/v1/models", headers=bearer(key)).status_code == 200
        assert http.get("/v1/models", headers={"x-api-key": key}).status_code == 200
        assert http.get("/llm/v1/models", headers=bearer(key)).status_code == 200


@pytest.mark.parametrize("key", ["x", "sk-on", "sk-onee", "SK-ONE", "sk-one,sk-two", "sk-öne"])
def test_what_is_not_a_key_does_not_open(live, key) -> None:
    headers = {b"authorization": b"Bearer " + key.encode()}
    with live.client() as http:
        assert http.get("/v1/models", headers=headers).status_code == 401
        assert http.get("/v1/models", headers={b"x-api-key": key.encode()}).status_code == 401
        assert http.get("/v1/models", params={"api_key": KEY}).status_code == 401


def test_a_path_of_another_server_says_why_below_a_prefix_too_and_to_those_with_a_key(live) -> None:
    with live.client() as http:
        for path in ("/server_info", "/llm/server_info"):
            reply = http.get(path, headers=bearer(KEY))
            assert reply.status_code == 404
            assert "/capabilities and /plugins" in reply.json()["error"]["message"]
            assert http.get(path).status_code == 401


def test_a_page_of_an_allowed_origin_may_ask_and_also_sees_errors(live) -> None:
    asks = {"access-control-request-method": "POST", "access-control-request-headers": "x-own"}
    with live.client(headers={"origin": ORIGIN}) as http:
        preflight = http.options("/v1/completions", headers=asks)
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == ORIGIN
        assert "POST" in preflight.headers["access-control-allow-methods"]
        assert preflight.headers["access-control-allow-headers"] == "x-own"
        for headers, status in (({}, 401), (bearer(KEY), 404)):
            reply = http.get("/no/such", headers=headers)
            assert reply.status_code == status
            assert reply.headers["access-control-allow-origin"] == ORIGIN
            assert reply.headers["vary"] == "Origin"


def test_a_page_of_another_origin_is_told_nothing(live, server) -> None:
    asks = {"origin": "https://other.example", "access-control-request-method": "POST"}
    with live.client() as http, server.client() as other:
        replies = [http.options("/v1/completions", headers=asks)]
        replies.append(http.get("/v1/models", headers={**asks, **bearer(KEY)}))
        replies.append(other.options("/v1/models", headers={**asks, "origin": ORIGIN}))
    assert [reply.status_code for reply in replies] == [401, 200, 403]
    for reply in replies:
        assert not [name for name in reply.headers if name.startswith("access-control")]


def test_nothing_that_a_client_sends_breaks_a_line_of_the_log(live) -> None:
    forged = "x\r\n2026-01-01 00:00:00,000 INFO FORGED\x1b[31m\u2028FORGED"
    with connect(live.url) as client:
        ask = request_bytes("/v1/completions", body(prompt=forged), f"authorization: Bearer {KEY}")
        client.sendall(ask)
        assert answer(client)[0] == 200
        client.sendall(request_bytes("/a%0d%0aFORGED%1b%5b31m%e2%80%a8FORGED"))
        assert answer(client)[0] == 401
        client.sendall(request_bytes("/health", None, "x-request-id: a\tFORGED b"))
        status, headers, _ = answer(client)
        assert status == 200
        assert "FORGED" not in headers["x-request-id"]
    with live.client(headers=bearer(KEY)) as http:
        http.post("/v1/completions", json=body(request_id="a\nFORGED"))
        http.post("/v1/completions", json={"\nFORGED": 1})
    log = live.log.read_text()
    assert "\x1b" not in log
    assert "\u2028" not in log
    lines = [line for line in log.splitlines() if "FORGED" in line]
    assert lines  # the prompt and the path are there
    for line in lines:
        assert line[:2] == "20"
        assert " INFO FORGED" not in line[20:35]


def test_requests_and_outputs_are_logged_cut_and_without_keys(live) -> None:
    with live.client(headers=bearer(KEY)) as http:
        sent = body(prompt="w " * 3000, max_tokens=3, request_id="named")
        assert http.post("/v1/completions", json={**sent, "max_tokens": 3}).status_code in (
            200,
            400,
        )
        assert http.post("/v1/completions", json=body(request_id="named-2")).status_code == 200
    log = live.log.read_text()
    assert "named-2 asks: 'The capital of France is'" in log
    assert "named-2 answers: ' Paris" in log
    assert max(map(len, log.splitlines())) < 3000
    for key in (KEY + " ", FILE_KEY, VARIABLE_KEY):
        assert key not in log


@pytest.mark.parametrize(
    ("flags", "variable", "said"),
    [
        ((), "", "OCTAVO_API_KEY must be printable"),
        (("--api-key", ""), None, "api_key must be printable"),
        (("--api-key-file", "/no/such"), None, "api_key_file='/no/such'"),
        (("--ssl-ca-certs", "x"), None, "ssl_ca_certs needs ssl_certfile"),
        (("--ssl-certfile", "x", "--ssl-keyfile", "y"), None, "cannot be used: "),
        (("--max-connections", "9000000"), None, "raise ulimit -n"),
        (("--allowed-origins", "*", "--allow-credentials"), None, "allow_credentials needs"),
    ],
)
def test_what_cannot_protect_is_an_error_at_the_start(flags, variable, said) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "OCTAVO_API_KEY"}
    if variable is not None:
        environment["OCTAVO_API_KEY"] = variable
    command = [*OCTAVO, "serve", "octavo/tiny", "--port", "0", *flags]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert ended.returncode == 2
    assert said in ended.stderr
    assert ended.stderr.count("\n") == 1
