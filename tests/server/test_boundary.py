"""Which endpoints answer without a key, with route groups of a plugin's and without an engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import MagicMock

import httpx
import pytest

from octavo.config.server import ServerConfig
from octavo.errors import OctavoError
from octavo.server.app import make_app
from octavo.server.boundary import DRAINING, Gate
from octavo.server.context import ServerContext
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
    transport = httpx.ASGITransport(make_app(context, keys=("secret",)))
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


async def test_a_closed_gate_says_why_by_a_code(monkeypatch) -> None:
    endpoint = Endpoint(method="GET", path="/state", app=says(b""))
    client = make_client(monkeypatch, [endpoint], Gate(closed=DRAINING))
    reply = await client.get("/state", headers={"authorization": "Bearer secret"})
    assert reply.status_code == 503
    assert reply.headers["retry-after"]
    assert reply.json()["error"]["code"] == "draining"
