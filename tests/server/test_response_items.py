"""Items of /v1/responses: what they are in a conversation, and how an answer's are told of."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.errors import MessageError, ParameterError
from octavo.server.apis.responses.items import (
    AnswerItems,
    FunctionCall,
    OutputMessage,
    OutputText,
    ReasoningItem,
    ReasoningText,
    input_messages,
)
from octavo.server.apis.responses.tools import chat_tool_choice, read_tools
from octavo.server.http.errors import HttpError
from octavo.server.protocol.notes import Notes
from octavo_registry import Delta

CALL = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
MADE = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
THOUGHT = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [],
    "content": [{"type": "reasoning_text", "text": "hm"}],
}
SAID = {"type": "message", "role": "assistant", "content": "a"}


def test_what_a_model_wrote_in_one_answer_is_one_message() -> None:
    items = [THOUGHT, SAID, CALL, {**CALL, "call_id": "2"}]
    assert input_messages(items, None, Notes()) == [
        {
            "role": "assistant",
            "reasoning_content": "hm",
            "content": "a",
            "tool_calls": [MADE, {**MADE, "id": "2"}],
        }
    ]
    assert input_messages([CALL], None, Notes()) == [{"role": "assistant", "tool_calls": [MADE]}]
    assert (
        input_messages([SAID, SAID], None, Notes()) == [{"role": "assistant", "content": "a"}] * 2
    )


def test_outputs_of_functions_are_messages_of_tools() -> None:
    output = {"type": "function_call_output", "call_id": "1", "output": "b"}
    parts = [{"type": "input_text", "text": "c"}, {"type": "input_text", "text": "d"}]
    assert input_messages([CALL, output, {**output, "output": parts}], "be kind", Notes()) == [
        {"role": "system", "content": "be kind"},
        {"role": "assistant", "tool_calls": [MADE]},
        {"role": "tool", "tool_call_id": "1", "content": "b"},
        {"role": "tool", "tool_call_id": "1", "content": "c\nd"},
    ]


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({**CALL, "call_id": None}, "input.0..call_id must be text"),
        ({**CALL, "arguments": {}}, "input.0..arguments must be text"),
        ({**CALL, "argument": 1}, "arguments"),
        ({"type": "function_call_output", "call_id": "1"}, "output must be text"),
        ({"type": "reasoning", "content": "a"}, "input.0..content must be a list"),
        ({"type": "web_search_call"}, "input.0. is of type 'web_search_call'"),
        ({"type": {}}, "is of type"),
        (
            {"role": "user", "content": [{"type": "input_video"}]},
            "type is 'input_video'; known: input_text, output_text, refusal, input_image",
        ),
    ],
)
def test_other_items_are_named(item, message) -> None:
    with pytest.raises((MessageError, HttpError), match=message):
        input_messages([item], None, Notes())


def test_tools_and_choices_are_a_chats() -> None:
    flat = {"type": "function", "name": "f", "parameters": {}, "strict": True, "description": None}
    function = {"name": "f", "parameters": {}, "strict": True}
    assert read_tools([flat], None, Notes()).functions == [
        {"type": "function", "function": function}
    ]
    named = {"type": "function", "function": {"name": "f"}}
    assert chat_tool_choice({"type": "function", "name": "f"}, Notes()) == named
    allowed = {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [{"type": "function", "name": "f"}],
    }
    assert chat_tool_choice(allowed, Notes()) == {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "auto", "tools": [named]},
    }
    assert chat_tool_choice("auto", Notes()) == "auto"
    with pytest.raises(ParameterError, match="'web_serch' is not known"):
        read_tools([{"type": "web_serch"}], None, Notes())


def test_each_kind_of_delta_begins_an_item_of_its_own() -> None:
    told: list[tuple[str, dict[str, Any]]] = []

    def tell(kind: str, **more: Any) -> bytes:
        told.append((kind, more))
        return b""

    answer = AnswerItems("r", tell, {})
    for delta in (
        Delta(reasoning="h"),
        Delta(reasoning="m"),
        Delta(content="a"),
        Delta(tool_call_index=0, id="1", name="f"),
        Delta(tool_call_index=0, arguments="{}"),
        Delta(tool_call_index=1, id="2", name="g"),
        Delta(tool_call_index=1, arguments="{"),
    ):
        answer.take(delta, [])
    answer.end("incomplete")
    assert answer.items == [
        ReasoningItem(id="rs_r", status="completed", content=[ReasoningText("hm")]),
        OutputMessage(id="msg_r_1", status="completed", content=[OutputText("a")]),
        FunctionCall(id="fc_r_2", call_id="1", name="f", arguments="{}", status="completed"),
        FunctionCall(id="fc_r_3", call_id="2", name="g", arguments="{", status="incomplete"),
    ]
    kinds = [kind for kind, _ in told]
    assert kinds == [
        *["output_item.added", "content_part.added", "reasoning_text.delta"],
        *["reasoning_text.delta", "reasoning_text.done", "content_part.done", "output_item.done"],
        *["output_item.added", "content_part.added", "output_text.delta", "output_text.done"],
        *["content_part.done", "output_item.done"],
        *["output_item.added", "function_call_arguments.delta", "function_call_arguments.done"],
        "output_item.done",
        *["output_item.added", "function_call_arguments.delta", "function_call_arguments.done"],
        "output_item.done",
    ]
    assert [more["output_index"] for _, more in told] == [0] * 7 + [1] * 6 + [2] * 4 + [3] * 4


def test_an_answer_without_words_has_an_empty_message() -> None:
    answer = AnswerItems("r", lambda kind, **more: b"", {})
    answer.end("completed")
    assert answer.items == [OutputMessage(id="msg_r", status="completed", content=[OutputText("")])]
