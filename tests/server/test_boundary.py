"""Which endpoints answer without a key, with route groups of a plugin's and without an engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import MagicMock

import httpx
import pytest

from octavo.config.server import ServerConfig
from octavo.errors import OctavoError, QueueFullError
from octavo.server.app import make_app
from octavo.server.context import ServerContext
from octavo.server.http.boundary import DRAINING, Boundary, Gate
from octavo.server.http.errors import HttpError
from octavo.server.http.exchange import JsonEndpoint
from octavo.server.http.keys import Keys
from octavo.server.http.sites import SiteGuard
from octavo_registry import PluginHost
from octavo_registry.routes import Endpoint


def says(text: bytes) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": text})

    return app


class Group:
    given: Sequence[Endpoint] = ()

    def __init__(self, server: object) -> None:
        pass

    def endpoints(self) -> Sequence[Endpoint]:
        return self.given


def make_client(
    monkeypatch: pytest.MonkeyPatch, endpoints: Sequence[Endpoint], gate: Gate | None = None
) -> httpx.AsyncClient:
    monkeypatch.setattr(Group, "given", endpoints)
    host = PluginHost()
    host.routes.add("given", f"{__name__}:Group")
    engine: Any = MagicMock(max_model_len=100)
    context = ServerContext(
        engine=engine, host=host, config=ServerConfig(), model_names=("m",), gate=gate or Gate()
    )
    transport = httpx.ASGITransport(make_app(context, keys=Keys(("secret",))))
    return httpx.AsyncClient(transport=transport, base_url="http://octavo")


async def test_an_open_endpoint_opens_no_other_method_of_its_path(monkeypatch) -> None:
    client = make_client(
        monkeypatch,
        [
            Endpoint(method="GET", path="/state", app=says(b"shown"), authenticated=False),
            Endpoint(method="POST", path="/state", app=says(b"changed")),
        ],
    )
    assert (await client.get("/state")).text == "shown"
    assert (await client.head("/state")).status_code == 200
    assert (await client.post("/state")).status_code == 401
    key = {"authorization": "Bearer secret"}
    assert (await client.post("/state", headers=key)).text == "changed"


async def test_a_pattern_does_not_take_a_path_that_is_given_as_it_stands(monkeypatch) -> None:
    client = make_client(
        monkeypatch,
        [
            Endpoint(method="GET", path="/{rest:path}", app=says(b"private")),
            Endpoint(method="GET", path="/state", app=says(b"open"), authenticated=False),
        ],
    )
    assert (await client.get("/state")).text == "open"
    for path in ("/other", "//state", "/state/", "/%2e/state", "/state%2f", "/./state/../x"):
        assert (await client.get(path)).status_code == 401, path


def test_a_pattern_cannot_be_open(monkeypatch) -> None:
    endpoint = Endpoint(method="GET", path="/{name}", app=says(b""), authenticated=False)
    with pytest.raises(OctavoError, match=r"'/\{name\}' is a pattern"):
        make_client(monkeypatch, [endpoint])


@pytest.mark.parametrize(
    ("given", "what"),
    [
        (None, "NoneType, not a list"),
        (["x"], "a str among Endpoints"),
        ([Endpoint(method="GET", path="x", app=says(b""))], "'x' needs a path from /"),
        ([Endpoint(method="GET", path="/x", app=1)], "'/x' needs a path from / and an app"),
    ],
)
def test_a_group_whose_endpoints_are_none_fails_by_name(monkeypatch, given, what) -> None:
    with pytest.raises(OctavoError, match=what):
        make_client(monkeypatch, given)


async def test_a_closed_gate_says_why_by_a_code(monkeypatch) -> None:
    endpoint = Endpoint(method="GET", path="/state", app=says(b""))
    client = make_client(monkeypatch, [endpoint], Gate(closed=DRAINING))
    reply = await client.get("/state", headers={"authorization": "Bearer secret"})
    assert reply.status_code == 503
    assert reply.headers["retry-after"]
    assert reply.json()["error"]["code"] == "draining"


def boundary_around(app: Any, statuses: list[int]) -> Boundary:
    config = ServerConfig()
    return Boundary(
        app,
        Gate(),
        access=config.access,
        limits=config.limits,
        serve=config.serve,
        keys=Keys(),
        sites=SiteGuard(config.access, is_local=False, has_keys=False),
        open_endpoints=(),
        answered=lambda method, route, status, seconds: statuses.append(status),
    )


@pytest.mark.parametrize(("error", "status"), [(HttpError(408, "slow"), 408), (ValueError(), 500)])
async def test_an_answer_that_fails_on_its_way_counts_as_that_failure(error, status) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise error

    async def send(message: Any) -> None:
        pass

    statuses: list[int] = []
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": []}
    with pytest.raises(type(error)):
        await boundary_around(app, statuses)(scope, MagicMock(), send)
    assert statuses == [status]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/messages"])
async def test_what_fails_outside_of_all_endpoints_is_a_500_in_the_paths_shape(path) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise ValueError("a secret")

    statuses: list[int] = []
    transport = httpx.ASGITransport(boundary_around(app, statuses))
    async with httpx.AsyncClient(transport=transport, base_url="http://octavo") as client:
        reply = await client.post(path, json={})
    assert (reply.status_code, statuses) == (500, [500])
    assert reply.headers["x-request-id"]
    assert "secret" not in reply.text
    assert ("type" in reply.json()) == (path == "/v1/messages")


async def test_no_body_is_read_for_a_queue_that_is_full() -> None:
    def full() -> None:
        raise QueueFullError("the queue is full")

    async def read() -> Any:
        raise AssertionError("the body was read")

    async def handle(exchange: object) -> Any:
        raise AssertionError("the request was handled")

    endpoint = JsonEndpoint(handle, ServerConfig().limits, check_room=full)
    with pytest.raises(QueueFullError):
        await endpoint({"headers": []}, read, MagicMock())
