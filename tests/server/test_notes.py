"""What has no effect is told: to the client, on the log and in /metrics, in bounded space."""

from __future__ import annotations

import logging
from typing import Any, Literal, get_origin

import openai
import pytest

from documented_fields import ROUTES
from octavo.server.http.errors import HttpError
from octavo.server.protocol.conversation import plain_messages, plain_tool_choice, plain_tools
from octavo.server.protocol.fields import read_body
from octavo.server.protocol.notes import MAX_NOTES, MAX_UNKNOWN, NoteLog, Notes
from server_in_process import MODEL, clients

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": HELLO, "max_tokens": 2},
    "/v1/completions": {"prompt": "Hello", "max_tokens": 2},
    "/v1/responses": {"input": "Hello", "max_output_tokens": 2},
    "/v1/messages": {"messages": HELLO, "max_tokens": 2},
}
MORE = {"/v1/messages/count_tokens": {"messages": HELLO}, "/tokenize": {"prompt": "Hello"}}
VALUES: tuple[Any, ...] = ("a", {"a": "b"}, ["a"], True, False, 7, 0.5)


@pytest.mark.parametrize(
    ("route", "name"),
    [(route, name) for route, (_, table, _) in ROUTES.items() for name in table.noted],
)
@pytest.mark.parametrize("refuses", [False, True])
def test_each_noted_field_is_told_in_both_modes(route, name, refuses) -> None:
    kind, table, _ = ROUTES[route]
    needed = {"prompt": "a", "input": "a", "messages": [], "max_tokens": 1, "file": b"a"}
    body = {key: value for key, value in needed.items() if key in kind.__struct_fields__}
    noted = table.noted[name]
    is_form = "file" in body

    def told(value: Any) -> list[str]:
        notes = Notes(refuses=refuses)
        given = str(value) if is_form and value is not None else value
        try:
            read_body({**body, name: given}, kind, table, notes, is_form=is_form)
        except HttpError as error:
            return [f"a {type(value).__name__} for {error.param}"]
        return [note.path for note in notes]

    assert all(told(value) == [] for value in (None, *noted.harmless))
    found = [told(value) for value in VALUES]
    assert get_origin(noted.kind) is Literal or [name] in found
    wrong = [f"a {type(value).__name__} for {name}" for value in VALUES]
    assert all(each in ([], [name]) or each[0] in wrong for each in found)


@pytest.mark.parametrize("path", [*BODIES, *MORE])
@pytest.mark.parametrize("stream", [False, True])
def test_an_unknown_field_is_told_in_a_header_and_in_the_body(http, path, stream) -> None:
    body = {**(BODIES | MORE)[path], "nonsense": 1}
    if stream and path in BODIES:
        body["stream"] = True
    reply = http.post(path, json=body)
    assert reply.status_code == 200, reply.text
    text = "'nonsense' is no field of this request and has no effect"
    assert reply.headers["x-octavo-warnings"] == text
    assert f'"warnings":["{text}"]' in reply.text


def test_an_answer_to_what_all_has_an_effect_has_no_warnings(http) -> None:
    for path, body in (BODIES | MORE).items():
        reply = http.post(path, json=body)
        assert "x-octavo-warnings" not in reply.headers
        assert "warnings" not in reply.text


def test_metrics_count_listed_fields_by_name_and_all_others_under_one(http) -> None:
    def counts() -> dict[str, float]:
        lines = http.get("/metrics").text.splitlines()
        noted = [line for line in lines if line.startswith("octavo:noted_fields_total")]
        return {line.split('field="')[1].split('"')[0]: float(line.split()[-1]) for line in noted}

    before = counts()
    more = {"user": "me", "own_a": 1, "own_b": 2, "messages": [{**HELLO[0], "annotations": [1]}]}
    assert http.post(CHAT, json={**BODIES[CHAT], **more}).status_code == 200
    after = counts()
    grown = {name: after[name] - before.get(name, 0) for name in after}
    assert {name: by for name, by in grown.items() if by} == {
        "user": 1, "(unknown)": 2, "messages.annotations": 1,
    }  # fmt: skip


def test_the_log_tells_of_each_field_and_client_once(caplog) -> None:
    caplog.set_level(logging.WARNING)
    log = NoteLog()
    for client in ("codex/1", "codex/1", "claude/2\n\x1b[31m"):
        notes = log.begin()
        notes.unknown("own", ("model",))
        notes.add("tools[3].defer_loading")
        log.tell(notes, client)
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        "noted: 'own' is no field of this request and has no effect (client 'codex/1')",
        "noted: tools[3].defer_loading has no effect (client 'codex/1')",
        r"noted: 'own' is no field of this request and has no effect (client 'claude/2\n\x1b[31m')",
        r"noted: tools[3].defer_loading has no effect (client 'claude/2\n\x1b[31m')",
    ]
    assert log.counter.read().values == [(("(unknown)",), 3), (("tools.defer_loading",), 3)]


def test_many_clients_and_fields_take_bounded_memory(caplog) -> None:
    log = NoteLog()
    for number in range(3000):
        notes = log.begin()
        notes.unknown(f"own{number}", ("model",))
        log.tell(notes, "a" * 10_000)
    assert len(log._told) <= 1024
    assert max(len(client) for client, _ in log._told) <= 64
    assert [labels for labels, _ in log.counter.read().values] == [("(unknown)",)]


def test_what_is_told_of_one_request_is_bounded() -> None:
    notes = Notes()
    for number in range(MAX_UNKNOWN):
        notes.unknown(f"{number} own \u2603 {'x' * 5000}", ("model",))
    assert len(notes.texts()) == MAX_NOTES + 1
    assert notes.texts()[-1] == f"and {MAX_UNKNOWN - MAX_NOTES} more have no effect"
    ((_, value),) = notes.headers()
    assert len(value) < 1100
    assert value.isascii()
    with pytest.raises(HttpError, match="more than 64 unknown fields"):
        notes.unknown("one more", ("model",))


@pytest.mark.parametrize("mode", ["warn", "refuse"])
async def test_the_flag_says_what_becomes_of_unknown_fields(engine, mode) -> None:
    (client,) = clients(engine, unknown_fields=mode)
    asked: dict[str, Any] = {"model": MODEL, "messages": HELLO, "max_tokens": 2}
    own = {"own": 1, "user": "me"}
    if mode == "warn":
        answer = await client.chat.completions.create(**asked, extra_body=own)
        assert len(answer.warnings) == 2
        return
    with pytest.raises(openai.BadRequestError, match="'own' is no field") as raised:
        await client.chat.completions.create(**asked, extra_body=own)
    assert (raised.value.param, raised.value.code) == ("own", "unknown_field")
    answer = await client.chat.completions.create(**asked, user="me")  # listed: noted as ever
    assert answer.warnings == ["user has no effect"]


def test_a_key_that_many_messages_have_is_told_once() -> None:
    notes = Notes()
    plain = plain_messages([{**HELLO[0], "id": "1"}, {**HELLO[0], "id": "2"}], notes)
    assert plain == [*HELLO, *HELLO]
    assert notes.texts() == ["'id' is no field of messages[0] and has no effect"]


FUNCTION = {"name": "f", "parameters": {"type": "object"}}


def test_more_keys_of_tools_are_noted_and_not_shown_to_the_model() -> None:
    given = [
        {
            "type": "function",
            "defer_loading": True,
            "function": {**FUNCTION, "input_examples": [{}], "own": 1, "strict": None},
        }
    ]
    notes = Notes()
    assert plain_tools(given, notes) == [{"type": "function", "function": FUNCTION}]
    assert [note.path for note in notes] == [
        "tools.defer_loading", "tools.function.input_examples", "tools.function.own",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("more", "paths"),
    [
        ({"own": 1}, ["tool_choice.own"]),
        ({"function": {"name": "f", "description": "d"}}, ["tool_choice.function.description"]),
        ({"function": {"name": "f", "own": 1}}, ["tool_choice.function.own"]),
    ],
)
def test_more_keys_of_a_choice_are_noted(http, more, paths) -> None:
    choice = {"type": "function", "function": {"name": "f"}}
    notes = Notes()
    assert plain_tool_choice({**choice, **more}, notes) == choice
    assert [note.path for note in notes] == paths
    limits = {"mode": "auto", "tools": [{**choice, **more}], "own": 1}
    allowed = {"type": "allowed_tools", "allowed_tools": limits}
    plain = plain_tool_choice(allowed, Notes())
    assert plain["allowed_tools"] == {"mode": "auto", "tools": [choice]}
    tools = [{"type": "function", "function": FUNCTION}]
    body = {**BODIES[CHAT], "tools": tools, "tool_choice": {**choice, **more}, "max_tokens": 40}
    assert http.post(CHAT, json=body).json()["choices"][0]["message"]["tool_calls"]


@pytest.mark.parametrize(
    ("path", "more", "field"),
    [
        (CHAT, {"reasoning_effort": "total"}, "reasoning_effort"),
        (CHAT, {"reasoning_effort": "high"}, "reasoning_effort"),
        (CHAT, {"verbosity": "low"}, "verbosity"),
        (CHAT, {"chat_template_kwargs": {"enable_thinking": False}}, "'enable_thinking'"),
        ("/v1/responses", {"chat_template_kwargs": {"own": 1}}, "'own'"),
        ("/v1/messages", {"chat_template_kwargs": {"own": 1}}, "'own'"),
        (CHAT, {"web_search_options": {"a": 1}}, "web_search_options"),
        ("/v1/responses", {"reasoning": {"effort": "ultra"}}, "reasoning.effort"),
        ("/v1/responses", {"reasoning": {"own": 1}}, "'own'"),
        ("/v1/responses", {"include": ["own"]}, "include"),
        ("/v1/responses", {"truncation": "auto"}, "truncation"),
        ("/v1/responses", {"context_management": [{"a": 1}]}, "context_management"),
        ("/v1/messages", {"thinking": {"type": "adaptive"}}, "thinking"),
        ("/v1/messages", {"thinking": {"type": "enabled", "budget_tokens": 9**9}}, "thinking"),
        ("/v1/messages", {"output_config": {"effort": "ultra"}}, "output_config.effort"),
        ("/v1/messages", {"output_config": {"own": 1}}, "'own'"),
        ("/v1/messages", {"metadata": {"user_id": "1", "own": 1}}, "metadata"),
        ("/v1/messages", {"context_management": {"edits": []}}, "context_management"),
        ("/v1/messages", {"speed": "fast"}, "speed"),
    ],
)
def test_hints_are_noted(http, path, more, field) -> None:
    reply = http.post(path, json={**BODIES[path], **more})
    assert reply.status_code == 200, reply.text
    assert reply.headers["x-octavo-warnings"].startswith(field)
    assert reply.json()["warnings"]


def test_more_keys_of_media_and_a_detail_that_nobody_knows_are_noted() -> None:
    image = {"url": "data:,", "detail": "best", "own": 1}
    parts = [{"type": "image_url", "image_url": image, "own": 1}, {"type": "smell", "own": 1}]
    notes = Notes()
    (message,) = plain_messages([{"role": "user", "content": parts}], notes)
    kept = {"type": "image_url", "image_url": {"url": "data:,"}}
    assert message["content"] == [kept, {"type": "smell", "own": 1}]
    place = "messages.content"
    assert {note.path for note in notes} == {
        f"{place}.own", f"{place}.image_url.own", f"{place}.image_url.detail",
    }  # fmt: skip


@pytest.mark.parametrize("path", [CHAT, "/v1/messages"])
def test_a_part_whose_type_is_a_list_is_a_400(http, path) -> None:
    messages = [{"role": "user", "content": [{"type": ["text"], "text": "a"}]}]
    assert http.post(path, json={**BODIES[path], "messages": messages}).status_code == 400


def test_padding_that_a_stream_does_not_have_is_noted(http) -> None:
    more = {"stream": True, "stream_options": {"include_obfuscation": True}}
    for path in (CHAT, "/v1/completions", "/v1/responses"):
        reply = http.post(path, json={**BODIES[path], **more})
        told = reply.headers["x-octavo-warnings"]
        assert told == "stream_options.include_obfuscation has no effect"


def test_names_of_other_apis_fields_are_no_slips(http) -> None:
    reply = http.post("/v1/messages", json={**BODIES["/v1/messages"], "seed": 1, "models": []})
    assert reply.headers["x-octavo-warnings"].count("is no field of this request") == 2
