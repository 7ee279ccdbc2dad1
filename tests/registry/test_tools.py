from __future__ import annotations

from octavo_registry import Delta, ParsedMessage, ToolCall


def test_deltas_join_into_one_message() -> None:
    deltas = [
        Delta(reasoning="hm"),
        Delta(reasoning="m", content="I "),
        Delta(content="call."),
        Delta(tool_call_index=1, name="b", id="b1", arguments=""),
        Delta(tool_call_index=0, name="a"),
        Delta(tool_call_index=0, arguments='{"x"'),
        Delta(tool_call_index=0, arguments=": 1}"),
    ]
    assert ParsedMessage.joined(deltas) == ParsedMessage(
        content="I call.",
        reasoning="hmm",
        tool_calls=(
            ToolCall(name="a", arguments='{"x": 1}'),
            ToolCall(name="b", arguments="", id="b1"),
        ),
    )


def test_what_the_model_did_not_write_is_none() -> None:
    assert ParsedMessage.joined([]) == ParsedMessage(content=None, reasoning=None, tool_calls=())
