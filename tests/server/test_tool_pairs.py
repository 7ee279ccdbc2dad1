"""Calls of tools without results and results without calls get the error of each API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from octavo.config.server import ServeConfig, ServerConfig
from octavo.server.app import make_app
from octavo.server.context import ServerContext
from octavo.server.http.errors import HttpError
from octavo.server.protocol.tool_pairs import check_blocks, check_items, check_messages

USER = {"role": "user", "content": "Hello"}
ANSWER = {"role": "assistant", "content": "Hi"}
ORPHAN = (
    "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with "
    "'tool_calls'."
)
ALONE = (
    "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
    "'tool_call_id'. The following tool_call_ids did not have response messages: "
)


def call(*ids: Any) -> dict[str, Any]:
    function = {"name": "f", "arguments": "{}"}
    made = [{"type": "function", "function": function, "id": id} for id in ids]
    return {"role": "assistant", "content": None, "tool_calls": made}


def result(id: Any = None) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": "a"}


def use(*ids: str) -> dict[str, Any]:
    blocks = [{"type": "tool_use", "id": id, "name": "f", "input": {}} for id in ids]
    return {"role": "assistant", "content": [{"type": "text", "text": "a"}, *blocks]}


def gave(*ids: str) -> dict[str, Any]:
    blocks = [{"type": "tool_result", "tool_use_id": id, "content": "a"} for id in ids]
    return {"role": "user", "content": [*blocks, {"type": "text", "text": "a"}]}


def refusal(check: Callable[[], None]) -> tuple[str, str | None] | None:
    """What is said, and of which parameter."""
    try:
        check()
    except HttpError as error:
        return f"{error.status} {error}", error.param
    return None


PAIRED = [
    [],
    [USER, ANSWER, USER],
    [USER, call("1"), result("1")],
    [USER, call("1", "2"), result("2"), result("1"), USER],
    [USER, call("1"), result("1"), call("1"), result("1"), ANSWER],
    [USER, call("1"), result("1"), result("1")],  # sent twice
    [USER, call(None, None), result(), result()],
    [USER, call("1", "2"), result(), result()],
    [USER, call(None), result("1")],
    [USER, {**ANSWER, "tool_calls": []}, USER],
    [USER, {**ANSWER, "tool_calls": None}, USER],
    [USER, {**ANSWER, "tool_calls": "malformed"}, {"role": ["odd"]}],
]


@pytest.mark.parametrize("messages", PAIRED)
def test_calls_with_their_results_pass(messages) -> None:
    assert refusal(lambda: check_messages(messages, is_continued=False)) is None


UNPAIRED = [
    ([USER, result("1")], ORPHAN, 1),
    ([result()], ORPHAN, 0),
    ([USER, ANSWER, result("1")], ORPHAN, 2),
    ([USER, call("1"), result("2")], ORPHAN, 2),
    ([USER, call("1"), result("1"), USER, result("1")], ORPHAN, 4),
    ([USER, call("1"), result("1"), result("2")], ORPHAN, 3),
    ([USER, call("1"), result("1"), result()], ORPHAN, 3),
    ([USER, call("1")], f"{ALONE}1", 1),
    ([USER, call("1", "2"), result("1")], f"{ALONE}2", 1),
    ([USER, call("1", "2"), USER], f"{ALONE}1, 2", 1),
    ([USER, call("1"), USER, result("1")], f"{ALONE}1", 1),
    ([USER, call("1"), call("2"), result("1"), result("2")], f"{ALONE}1", 1),
    ([USER, call({"odd": 1}), USER], ALONE + "{'odd': 1}", 1),
    ([USER, call(*map(str, range(20))), USER], f"{ALONE}0, 1, 2, 3, 4, 5, 6, 7, ...", 1),
]


@pytest.mark.parametrize(("messages", "told", "place"), UNPAIRED)
def test_others_get_openais_error(messages, told, place) -> None:
    expected = (f"400 {told}", f"messages.[{place}].role")
    assert refusal(lambda: check_messages(messages, is_continued=False)) == expected


def test_a_last_message_that_goes_on_has_no_results_yet() -> None:
    assert refusal(lambda: check_messages([USER, call("1")], is_continued=True)) is None
    assert refusal(lambda: check_messages([call("1"), ANSWER], is_continued=True)) is not None
    assert refusal(lambda: check_blocks([USER, use("1")], is_continued=True)) is None


def test_items_find_their_others_anywhere_before() -> None:
    for messages in ([call("1"), USER, result("1")], [call("1", "2"), result("2"), result("1")]):
        assert refusal(lambda messages=messages: check_items(messages)) is None
    told = "No tool call found for function call output with call_id 1."
    for messages in ([result("1")], [result("1"), call("1")], [call("2"), result("1")]):
        assert refusal(lambda messages=messages: check_items(messages)) == (f"400 {told}", "input")
    told = "No tool output found for function call 1."
    assert refusal(lambda: check_items([USER, call("1"), USER])) == (f"400 {told}", "input")


class Id(str):
    """An id that counts how often any is compared with another."""

    num_compared = 0

    def __eq__(self, other: object) -> bool:
        Id.num_compared += 1
        return str.__eq__(self, str(other))

    __hash__ = str.__hash__


@pytest.mark.parametrize("api", ["chats", "responses", "messages"])
def test_ids_are_looked_up_however_many_there_are(api) -> None:
    ids, same = ([Id(f"call_{n}") for n in range(1_000)] for _ in range(2))
    Id.num_compared = 0
    results = [result(id) for id in reversed(same)]
    if api == "chats":
        check_messages([USER, call(*ids), *results], is_continued=False)
    elif api == "responses":
        check_items([USER, call(*ids), *results])
    else:
        check_blocks([USER, use(*ids), gave(*same)], is_continued=False)
    assert Id.num_compared < 20 * len(ids)


def of_blocks(*messages: dict[str, Any]) -> tuple[str, str | None] | None:
    return refusal(lambda: check_blocks(messages, is_continued=False))


def test_blocks_get_anthropics_error() -> None:
    assert of_blocks(USER, use("1", "2"), gave("2", "1")) is None
    assert of_blocks(USER, use("1"), gave("1"), use("1"), gave("1")) is None
    assert of_blocks(USER, use("1", "2"), gave("2")) == (
        "400 messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: "
        "1. Each `tool_use` block must have a corresponding `tool_result` block in the next "
        "message.",
        None,
    )
    for messages in ([gave("1")], [use("2"), gave("2", "1")], [use("1"), gave("1"), gave("1")]):
        told, _ = of_blocks(*messages) or ("", None)
        assert "unexpected `tool_use_id` found in `tool_result` blocks: 1. Each" in told


ASKED = {
    "/v1/chat/completions": {"messages": [USER, result("1")], "max_tokens": 1},
    "/v1/responses": {
        "input": [{"type": "function_call_output", "call_id": "1", "output": "a"}],
        "max_output_tokens": 1,
    },
    "/v1/messages": {"messages": [gave("1")], "max_tokens": 1},
    "/v1/messages/count_tokens": {"messages": [gave("1")]},
    "/v1/responses/input_tokens": {
        "input": [{"type": "function_call_output", "call_id": "1", "output": "a"}]
    },
    "/tokenize": {"messages": [USER, result("1")]},
}


@pytest.mark.parametrize("path", ASKED)
@pytest.mark.parametrize(("is_allowed", "status"), [(False, 400), (True, 200)])
async def test_over_http_they_are_a_400_unless_a_flag_lets_them_pass(
    engine, path, is_allowed, status
) -> None:
    serve = ServeConfig(allow_unpaired_tool_calls=is_allowed)
    server = ServerContext(
        engine=engine, host=engine.host, config=ServerConfig(serve=serve), model_names=("m",)
    )
    transport = httpx.ASGITransport(make_app(server))
    async with httpx.AsyncClient(transport=transport, base_url="http://octavo") as http:
        reply = await http.post(path, json=ASKED[path])
    assert reply.status_code == status
    if status == 400:
        assert reply.json()["error"]["type"] == "invalid_request_error"


CALLED = "tool_calls[0].function.arguments"
NOTED = "is no JSON object, and shown under the key 'INVALID_JSON'"


@pytest.mark.parametrize("arguments", ["[]", '{"a": ', "{} {}"])
async def test_arguments_that_are_no_object_are_noted(engine, arguments) -> None:
    server = ServerContext(
        engine=engine, host=engine.host, config=ServerConfig(), model_names=("m",)
    )
    chat = [USER, call("1"), result("1")]
    chat[1]["tool_calls"][0]["function"]["arguments"] = arguments
    item = {"type": "function_call", "call_id": "1", "name": "f", "arguments": arguments}
    output = {"type": "function_call_output", "call_id": "1", "output": "a"}
    asked = {
        "/v1/chat/completions": ({"messages": chat, "max_tokens": 1}, f"messages[1].{CALLED}"),
        "/tokenize": ({"messages": chat}, f"messages[1].{CALLED}"),
        "/v1/responses": ({"input": [item, output], "max_output_tokens": 1}, "input[0].arguments"),
    }
    transport = httpx.ASGITransport(make_app(server))
    async with httpx.AsyncClient(transport=transport, base_url="http://octavo") as http:
        for path, (body, place) in asked.items():
            reply = await http.post(path, json=body)
            assert reply.status_code == 200, reply.text
            assert reply.json()["warnings"] == [f"{place} {NOTED}"]
