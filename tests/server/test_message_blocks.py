"""Anthropic's blocks: what they are in a conversation, and how an answer's are told of."""

from __future__ import annotations

import json
import time
from typing import Any
from unittest.mock import MagicMock

import pytest

from octavo.config.server import ServerConfig
from octavo.errors import BadRequestError, MessageError
from octavo.server.apis.messages.block_messages import chat_messages
from octavo.server.apis.messages.blocks import AnswerBlocks, TextBlock, ThinkingBlock, ToolUseBlock
from octavo.server.apis.messages.body import CountRequest, request_messages
from octavo.server.apis.messages.tools import chat_tool_choice, chat_tools
from octavo.server.context import ServerContext
from octavo.server.http.errors import HttpError
from octavo.server.http.exchange import encode
from octavo.server.protocol.notes import Notes
from octavo_registry import Delta, PluginHost

USE = {"type": "tool_use", "id": "1", "name": "f", "input": {"x": 1}}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}


def text(value: str) -> dict[str, str]:
    return {"type": "text", "text": value}


def test_results_become_messages_of_their_own_in_their_place() -> None:
    results = [
        {"type": "tool_result", "tool_use_id": "1", "content": "a"},
        {"type": "tool_result", "tool_use_id": "2", "content": [text("b"), text("c")]},
        {"type": "tool_result", "tool_use_id": "3", "content": "no", "is_error": True},
    ]
    assert chat_messages("m", "user", [*results, text("d")], Notes()) == [
        {"role": "tool", "tool_call_id": "1", "content": "a"},
        {"role": "tool", "tool_call_id": "2", "content": "b\nc"},
        {"role": "tool", "tool_call_id": "3", "content": "Error: no"},
        {"role": "user", "content": [text("d")]},
    ]


@pytest.mark.parametrize("num_messages", [1, 4096])
def test_long_thoughts_of_many_blocks_are_read_at_once(num_messages) -> None:
    thought = {"type": "thinking", "thinking": "x" * 2_000, "signature": ""}
    blocks = [thought] * (16_384 // num_messages)
    messages = [{"role": "assistant", "content": blocks}] * num_messages
    began = time.process_time()
    made = request_messages(CountRequest(messages=messages), Notes(), MagicMock())
    assert time.process_time() - began < 2  # 0.1 s; each joined to all before it: minutes
    assert [len(each["reasoning_content"]) for each in made] == [16_384 * 2_000]


def test_messages_of_one_role_are_one() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    answers = [[thought, USE], "a", [thought, {**USE, "id": "2"}]]
    messages = [{"role": "assistant", "content": each} for each in answers]
    request = CountRequest(messages=[{"role": "user", "content": "b"}, *messages], system="c")
    assert request_messages(request, Notes(), MagicMock()) == [
        {"role": "system", "content": "c"},
        {"role": "user", "content": "b"},
        {
            "role": "assistant",
            "content": "a",
            "reasoning_content": "hmhm",
            "tool_calls": [CALL, {**CALL, "id": "2"}],
        },
    ]


def test_an_assistants_blocks_are_one_message() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    assert chat_messages("m", "assistant", [thought, text("a"), USE], Notes()) == [
        {
            "role": "assistant",
            "reasoning_content": "hm",
            "content": [text("a")],
            "tool_calls": [CALL],
        }
    ]
    several = chat_messages("m", "assistant", [thought, text("a"), thought], Notes())
    assert several[0]["reasoning_content"] == "hmhm"
    assert chat_messages("m", "assistant", [USE], Notes()) == [
        {"role": "assistant", "tool_calls": [CALL]}
    ]


@pytest.mark.parametrize(
    ("role", "block", "message"),
    [
        ("user", USE, "m.0..type is 'tool_use'; this route takes text, image, doc"),
        ("assistant", {"type": "tool_result"}, "takes text, thinking, tool_use"),
        ("user", {"type": "container_upload", "file_id": "x"}, "type is 'container_upload'"),
        ("assistant", {**USE, "input": "{}"}, "m.0..input must be an object"),
        ("assistant", {**USE, "id": None}, "m.0..id must be text"),
        ("user", {"type": "tool_result", "content": "a"}, "tool_use_id must be text"),
        ("user", {"type": "tool_result", "tool_use_id": "1", "content": 3}, "content must be"),
        ("user", {"type": "tool_result", "tool_use_ids": "1"}, "tool_use_id"),
        ("user", {"type": ["a"]}, "type is"),
        ("user", 3, "type is None"),
    ],
)
def test_other_blocks_are_named(role, block, message) -> None:
    with pytest.raises((MessageError, HttpError), match=message):
        chat_messages("m", role, [block], Notes())


def test_tools_and_choices_are_openais() -> None:
    schema = {"type": "object"}
    assert chat_tools([{"name": "f", "input_schema": schema, "cache_control": {}}], Notes()) == [
        {"type": "function", "function": {"name": "f", "parameters": schema}}
    ]
    assert chat_tools(None, Notes()) is None
    assert chat_tool_choice(None, Notes()) == (None, None)
    assert chat_tool_choice({"type": "any", "disable_parallel_tool_use": True}, Notes()) == (
        "required",
        False,
    )
    named = {"type": "function", "function": {"name": "f"}}
    assert chat_tool_choice({"type": "tool", "name": "f"}, Notes()) == (named, None)


@pytest.mark.parametrize(
    ("refused", "param"),
    [
        (lambda: chat_tools([{"type": "web_serch_20250305", "name": "web"}], Notes()), "tools"),
        (lambda: chat_tool_choice({"type": "all"}, Notes()), "tool_choice"),
        (lambda: chat_tool_choice({"type": []}, Notes()), "tool_choice"),
        (
            lambda: chat_tool_choice({"type": "any", "disable_parallel_tool_use": "x"}, Notes()),
            "tool_choice",
        ),
    ],
)
def test_other_tools_and_choices_are_refused(refused, param) -> None:
    with pytest.raises((BadRequestError, HttpError)) as raised:
        refused()
    assert raised.value.param == param


DELTAS = [
    Delta(reasoning="h"),
    Delta(reasoning="m"),
    Delta(content=""),
    Delta(content="a"),
    Delta(tool_call_index=0, id="1", name="f"),
    Delta(tool_call_index=0, arguments='{"x"'),
    Delta(tool_call_index=0, arguments=": 1}"),
    Delta(tool_call_index=1, id="2", name="g"),
    Delta(tool_call_index=1, arguments="[1]"),
]


def told(events: list[bytes]) -> list[dict[str, Any]]:
    return [json.loads(event.partition(b"data: ")[2]) for event in events]


def test_each_kind_of_delta_begins_a_block_of_its_own() -> None:
    answer = AnswerBlocks()
    events = told([event for delta in DELTAS for event in answer.take(delta)] + answer.end())
    assert answer.blocks == [
        ThinkingBlock("hm"),
        TextBlock("a"),
        ToolUseBlock("1", "f", {"x": 1}),
        ToolUseBlock("2", "g", {"INVALID_JSON": "[1]"}),
    ]
    assert answer.has_calls
    kinds = [(each["type"].removeprefix("content_block_"), each["index"]) for each in events]
    assert kinds == [
        *[("start", 0), ("delta", 0), ("delta", 0), ("stop", 0)],
        *[("start", 1), ("delta", 1), ("stop", 1)],
        *[("start", 2), ("delta", 2), ("delta", 2), ("stop", 2)],
        *[("start", 3), ("delta", 3), ("stop", 3)],
    ]
    begun = [each["content_block"] for each in events if "content_block" in each]
    assert begun[2] == {"type": "tool_use", "id": "1", "name": "f", "input": {}}
    assert events[8]["delta"] == {"type": "input_json_delta", "partial_json": '{"x"'}


def test_a_text_has_no_key_that_parsers_of_clients_refuse() -> None:
    answer = AnswerBlocks()
    (begun, _) = told(answer.take(Delta(content="a")))
    assert begun["content_block"] == {"type": "text", "text": ""}
    answer.end()
    assert json.loads(encode(answer.blocks)) == [{"type": "text", "text": "a"}]


def test_arguments_that_were_cut_off_are_kept() -> None:
    answer = AnswerBlocks()
    answer.take(Delta(tool_call_index=0, id="1", name="f"))
    answer.take(Delta(tool_call_index=0, arguments='{"y": '))
    answer.end()
    assert answer.blocks == [ToolUseBlock("1", "f", {"INVALID_JSON": '{"y": '})]


def test_an_answer_without_words_has_an_empty_block() -> None:
    answer = AnswerBlocks()
    assert [each["type"] for each in told(answer.end())] == [
        "content_block_start",
        "content_block_stop",
    ]
    assert answer.blocks == [TextBlock("")]


def test_thought_is_switched_where_the_template_has_a_switch() -> None:
    engine: Any = MagicMock()
    notes = Notes()
    server = ServerContext(
        engine=engine, host=PluginHost(), config=ServerConfig(), model_names=("m",)
    )
    engine.chat_template().variables = {"messages", "enable_thinking"}
    assert server.thinking_kwargs(True, notes) == {"enable_thinking": True}
    assert server.thinking_kwargs(False, notes) == {"enable_thinking": False}
    engine.chat_template().variables = {"messages"}
    assert server.thinking_kwargs(True, notes) == {}  # it thinks by itself
    engine.answer_format.reasoning_parser = None
    assert server.thinking_kwargs(False, notes) == {}
    assert notes.texts() == []
    assert server.thinking_kwargs(True, notes) == {}
    assert "reasoning-parser" in notes.texts()[0]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"format": {"type": "json_schema"}}, "output_config.format must be an object with the"),
        ({"format": {"type": "text"}}, "output_config.format must be an object with the"),
        ({"efort": "low"}, "'efort' is no field of output_config; close: ['effort']"),
        ({"effort": 1}, "output_config.effort: expected str"),
    ],
)
def test_a_config_of_output_that_cannot_be_kept_is_refused(http, config, said) -> None:
    body = {"messages": [{"role": "user", "content": "a"}], "output_config": config}
    reply = http.post("/v1/messages", json={**body, "max_tokens": 1})
    assert reply.status_code == 400
    assert reply.json()["error"]["message"].startswith(said)
