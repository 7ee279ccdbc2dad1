from __future__ import annotations

import pytest

from octavo.tools import (
    MessageStream,
    Reader,
    Reading,
    Stream,
    get_reasoning_parser,
    get_tool_parser,
    parsed,
)
from octavo_registry import ParsedMessage, PluginHost, ToolCall, UnknownNameError


def thought(reader: Reader) -> Reading[None]:
    yield from reader.text_until("</think>", to=reader.reasoning)


def calls(reader: Reader) -> Reading[None]:
    while (yield from reader.text_until("#")):
        reader.hold("#")
        name = yield from reader.take_while("[a-z]")
        if (yield from reader.literal(".")):
            reader.call(name)
            reader.arguments("{}")
        else:
            reader.give_back()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "Do I #call.? </think>\n#call.\nDone. #x",
            ParsedMessage(
                reasoning="Do I #call.? ",
                content="\nDone. #x",
                tool_calls=(ToolCall(name="call", arguments="{}"),),
            ),
        ),
        ("only </thi", ParsedMessage(reasoning="only </thi")),
        ("</think>\n\n", ParsedMessage(content="\n\n")),
    ],
)
def test_the_tool_parser_gets_what_the_reasoning_parser_leaves(text, message) -> None:
    for pieces in ([text], list(text)):
        stream = MessageStream(reasoning=Stream(thought), tools=Stream(calls))
        assert parsed(stream, *pieces) == message


def test_either_parser_may_be_missing() -> None:
    text = "a</think>#b."
    call = (ToolCall(name="b", arguments="{}"),)
    assert parsed(MessageStream(), text) == ParsedMessage(content=text)
    assert parsed(MessageStream(reasoning=Stream(thought)), text) == ParsedMessage(
        reasoning="a", content="#b."
    )
    assert parsed(MessageStream(tools=Stream(calls)), text) == ParsedMessage(
        content="a</think>", tool_calls=call
    )


PARSERS = """
from octavo_registry import Delta

@hookimpl
def register_tool_parsers(parsers): parsers.add("mine", "mine:Parser")

@hookimpl
def register_reasoning_parsers(parsers): parsers.add("mine", "mine:Parser")

class Parser:
    samples = markers = ()
    def __init__(self, tokenizer): self.tokenizer = tokenizer
    def form(self, tools, *, parallel): return None
    def before_answer(self, prompt): return None
    def stream(self, tools=None, *, prompt=None): return Stream(tools, prompt)

class Stream:
    def __init__(self, *given): self.given = given
    def feed(self, text): return [Delta(content=text)]
    def finish(self): return [Delta(content=f" {self.given}")]
"""


def test_parsers_are_found_by_name_and_given_tools_and_prompt(site) -> None:
    site.install("mine", PARSERS)
    tools = get_tool_parser("mine", "a tokenizer")
    assert tools.parser.tokenizer == "a tokenizer"
    assert tools.parse("text", ["tool"]) == ParsedMessage(content="text (['tool'], None)")
    reasoning = get_reasoning_parser("mine", host=PluginHost.discover())
    assert reasoning.parse("text", prompt="p") == ParsedMessage(content="text (None, 'p')")


def test_an_unknown_parser_lists_near_matches(site) -> None:
    site.install("mine", PARSERS)
    with pytest.raises(UnknownNameError, match=r"no tool parser named 'min'; close: \['mine'\]"):
        get_tool_parser("min")
