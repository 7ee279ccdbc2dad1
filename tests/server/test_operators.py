"""What only the operator may ask for: keys of their own, and names that lead nowhere."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import httpx
import pytest

from octavo.config.server import AccessConfig, AdapterConfig, ServerConfig
from octavo.errors import ConfigError, OctavoError
from octavo.server.adapters import is_name
from octavo.server.app import add_built_in_routes, make_app
from octavo.server.context import ServerContext
from octavo.server.http.keys import NO_KEYS, Keys, read_keys
from octavo_registry import PluginHost
from octavo_registry.routes import Endpoint

BOTH = Keys(users=("sk-user",), operators=("sk-boss", "sk-other"))
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


async def says(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"done"})


class Group:
    is_open = False

    def __init__(self, server: object) -> None:
        pass

    def endpoints(self) -> list[Endpoint]:
        made = Endpoint(method="POST", path="/sleep", app=says, operators_only=True)
        named = Endpoint(method="POST", path="/drop/{name}", app=says, operators_only=True)
        wrong = Endpoint(
            method="GET", path="/x", app=says, operators_only=True, authenticated=False
        )
        return [made, named, *([wrong] if self.is_open else [])]


def client_of(keys: Keys) -> httpx.AsyncClient:
    """A server that loads adapters, and has a plugin's routes for its operator."""
    host = PluginHost()
    add_built_in_routes(host.routes)
    host.routes.add("given", f"{__name__}:Group")
    config = ServerConfig(adapters=AdapterConfig(allow_runtime_lora=True))
    engine: Any = MagicMock(host=host, max_model_len=100)
    context = ServerContext(engine=engine, host=host, config=config, model_names=("m",))
    transport = httpx.ASGITransport(make_app(context, keys))
    return httpx.AsyncClient(transport=transport, base_url="http://octavo")


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if key else {}


@pytest.mark.parametrize(
    ("keys", "statuses"),
    [
        (BOTH, {"": 401, "sk-user": 403, "sk-boss": 200, "sk-other": 200, "sk-bos": 401}),
        (Keys(users=("sk-user",)), {"": 401, "sk-user": 403}),
        (Keys(operators=("sk-boss",)), {"": 403, "sk-user": 403, "sk-boss": 200}),
        (NO_KEYS, {"": 200, "sk-user": 200}),
    ],
)
async def test_what_changes_the_server_needs_a_key_of_the_operators(keys, statuses) -> None:
    async with client_of(keys) as http:
        for key, status in statuses.items():
            for path in ("/sleep", "/drop/a", LOAD, UNLOAD):
                reply = await http.post(path, headers=bearer(key), json={})
                built_in = 400 if status == 200 else status  # the body lacks the name
                assert reply.status_code == (built_in if path in (LOAD, UNLOAD) else status)
                if status == 403:
                    assert reply.json()["error"]["code"] == "operator_key_needed"
            users = 401 if status == 401 else 200
            assert (await http.get("/version", headers=bearer(key))).status_code == users


async def test_the_document_says_which_key_each_route_takes() -> None:
    async with client_of(BOTH) as http:
        told = (await http.get("/openapi.json", headers=bearer("sk-boss"))).json()
    assert set(told["components"]["securitySchemes"]) == {"key", "operator"}
    assert told["security"] == [{"key": []}, {"operator": []}]
    assert told["paths"][LOAD]["post"]["security"] == [{"operator": []}]
    assert "security" not in told["paths"]["/v1/models"]["get"]


def test_a_route_of_the_operators_cannot_be_open(monkeypatch) -> None:
    monkeypatch.setattr(Group, "is_open", True)
    with pytest.raises(OctavoError, match="'/x' is the operator's, so it needs a key"):
        client_of(BOTH)


def test_operators_keys_come_from_where_users_do(tmp_path, monkeypatch) -> None:
    file = tmp_path / "keys"
    file.write_text("in-file\nanother\n")
    monkeypatch.setenv("OCTAVO_ADMIN_KEY", "in-variable")
    access = AccessConfig(api_key=("u",), admin_key=("given",), admin_key_file=str(file))
    expected = ("given", "in-file", "another", "in-variable")
    assert read_keys(access) == Keys(users=("u",), operators=expected)
    with pytest.raises(ConfigError, match="none of api_key"):
        read_keys(AccessConfig(api_key=("given",), admin_key=("given",)))
    with pytest.raises(ConfigError, match="admin_key must be printable"):
        AccessConfig(admin_key=("",))
    with pytest.raises(ConfigError, match="admin_key_file='/no/such'"):
        read_keys(AccessConfig(admin_key_file="/no/such"))
    monkeypatch.setenv("OCTAVO_ADMIN_KEY", "")
    with pytest.raises(ConfigError, match="OCTAVO_ADMIN_KEY must be printable"):
        read_keys(AccessConfig())


NO_NAMES = ["../x", "..", ".", "a/../b", "a/..", "/x", "x/", "a//b", "./x", "..\\x", "C:\\x", "",
            " x", "a\nb", "a" * 129, "\u202ex"]  # fmt: skip


@pytest.mark.parametrize("name", NO_NAMES)
async def test_what_leads_out_of_a_folder_is_no_adapters_name(name) -> None:
    assert not is_name(name)
    async with client_of(NO_KEYS) as http:
        reply = await http.post(LOAD, json={"lora_name": name, "lora_path": "x"})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "lora_name")


@pytest.mark.parametrize("name", ["a", "org/a", "a.b", "..a", "a..", "...", "a b", "ä", "a:b@c"])
def test_other_names_are(name) -> None:
    assert is_name(name)
