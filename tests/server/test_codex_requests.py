"""What Codex CLI sends to /v1/responses, recorded from it and shortened, is answered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from octavo.errors import ParameterError
from octavo.server.apis.responses.items import AnswerItems, FunctionCall, input_messages
from octavo.server.apis.responses.tools import read_tools
from octavo.server.protocol.notes import Notes
from octavo_registry import Delta

RECORDED = json.loads((Path(__file__).parent / "recorded" / "codex_responses.json").read_text())
INNER = {"type": "function", "name": "spawn", "parameters": {"type": "object"}}
SPACE = {"type": "namespace", "name": "agents", "description": "d", "tools": [INNER]}


def test_the_first_request_of_codex_is_answered_and_what_has_no_effect_is_told(client) -> None:
    body: dict[str, Any] = {**RECORDED, "stream": True}
    own = {"client_metadata": body.pop("client_metadata")}
    events = list(client.responses.create(**body, extra_body={**own, "max_output_tokens": 8}))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    last = events[-1]
    assert last.type in ("response.completed", "response.incomplete")
    told = "\n".join(last.response.warnings)
    for name in ("web_search", "reasoning.summary", "reasoning.encrypted_content"):
        assert name in told


@pytest.mark.parametrize("effort", ["low", "high"])
def test_an_effort_that_no_template_reads_is_told(client: OpenAI, effort: str) -> None:
    answer = client.responses.create(
        model="octavo/tiny", input="Hello", max_output_tokens=4, reasoning={"effort": effort},
        text={"verbosity": "low"},
    )  # fmt: skip
    assert [each.split()[0] for each in answer.warnings] == ["text.verbosity", "reasoning.effort"]


def test_functions_of_a_namespace_are_flat_for_the_model_and_whole_for_the_client() -> None:
    notes = Notes()
    tools = read_tools([SPACE, {"type": "web_search"}, {"type": "mcp"}], "auto", notes)
    (function,) = tools.functions
    assert function["function"]["name"] == "agents__spawn"
    assert notes.texts() == [
        "tools[1]:web_search cannot run here and was left out",
        "tools[2]:mcp cannot run here and was left out",
    ]
    answer = AnswerItems("r", lambda kind, **more: b"", tools.namespaced)
    answer.take(Delta(tool_call_index=0, id="1", name="agents__spawn", arguments="{}"), [])
    answer.end("completed")
    (item,) = answer.items
    assert isinstance(item, FunctionCall)
    assert (item.namespace, item.name) == ("agents", "spawn")
    sent_back = {
        "type": "function_call", "call_id": "1", "namespace": "agents", "name": "spawn",
        "arguments": "{}",
    }  # fmt: skip
    (message,) = input_messages([sent_back], None, Notes())
    assert message["tool_calls"][0]["function"]["name"] == "agents__spawn"


@pytest.mark.parametrize(
    "tools",
    [
        [SPACE, SPACE],
        [SPACE, {**INNER, "name": "agents__spawn"}],
        [{**SPACE, "tools": [SPACE]}],
        [{**SPACE, "tools": None}],
        [{"type": "functon"}],
    ],
)
def test_namespaces_that_cannot_be_flat_are_refused(tools: list[dict[str, Any]]) -> None:
    with pytest.raises(ParameterError):
        read_tools(tools, "auto", Notes())


def test_custom_calls_and_encrypted_thoughts_of_a_history_are_read() -> None:
    items = [
        {"type": "reasoning", "summary": [], "encrypted_content": "x"},
        {"type": "custom_tool_call", "call_id": "1", "name": "apply_patch", "input": 'a "b"'},
        {"type": "custom_tool_call_output", "call_id": "1", "output": "done"},
    ]
    notes = Notes()
    said, result = input_messages(items, None, notes)
    (call,) = said["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"input": 'a "b"'}
    assert (result["role"], result["tool_call_id"], result["content"]) == ("tool", "1", "done")
    assert [note.path for note in notes] == ["input.encrypted_content"]
