"""Each tool parser's form becomes a grammar that the guided backend takes."""

from __future__ import annotations

from typing import Any

import pytest
from llguidance import LLMatcher

from octavo.guided.constraint import checked_constraint
from octavo.tools.answer_format import AnswerFormat
from octavo.tools.choice import read_tool_use
from octavo_plugins.guided.llguidance.grammar import grammar_of
from octavo_registry import PluginHost

HOST = PluginHost.discover()


def tool(name: str) -> dict[str, Any]:
    properties = {"city": {"type": "string"}, "n": {"type": "integer"}}
    schema = {"properties": properties, "required": ["city"], "additionalProperties": False}
    parameters = {"type": "object", **schema}
    return {
        "type": "function",
        "function": {"name": name, "strict": True, "parameters": parameters},
    }


@pytest.mark.parametrize("with_special_tokens", [False, True])
@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("name", HOST.tool_parsers.names())
def test_calls_of_each_format_can_be_demanded(name, choice, parallel, with_special_tokens) -> None:
    parser = HOST.tool_parsers.load(name)(None)
    use = read_tool_use([tool("get_weather"), tool("get_time")], choice, parallel)
    expected = AnswerFormat(tool_parser=parser).expect("", use, None)
    assert expected.guided is not None
    special = {text: 1000 + i for i, text in enumerate(parser.markers)}
    constraint = checked_constraint(expected.guided).constraint
    grammar = grammar_of(constraint, special if with_special_tokens else {})
    assert LLMatcher.validate_grammar(grammar) == ""
    assert "get_time" in grammar
