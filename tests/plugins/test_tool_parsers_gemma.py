"""Gemma's notation of calls: functiongemma and gemma4."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.testing.structure_texts import random_text
from octavo.tools import get_tool_parser, parsed
from octavo_plugins.tool_parsers.gemma.parser import FunctionGemmaParser, Gemma4Parser
from tool_parsers import (
    TOOLS,
    Call,
    Part,
    assert_cuts_do_not_matter,
    assert_form_is_read_back,
    assert_no_text_is_lost,
    assert_reads_back,
    damaged,
    json_values,
    messages,
    parse,
    quick,
    texts,
    tool,
)

PARSERS = [FunctionGemmaParser(), Gemma4Parser()]
all_parsers = pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: type(parser).__name__)


def value_text(value: Any, quote: str) -> str:
    match value:
        case str():
            return f"{quote}{value}{quote}"
        case dict():
            return "{" + members_text(value, quote) + "}"
        case list():
            return "[" + ",".join(value_text(item, quote) for item in value) + "]"
        case _:
            return json.dumps(value)


def members_text(members: dict[str, Any], quote: str) -> str:
    return ",".join(f"{key}:{value_text(value, quote)}" for key, value in members.items())


def rendered(parser: Any, parts: Sequence[Part]) -> str:
    def call_text(call: Call) -> str:
        members = members_text(dict(call.arguments), parser.quote)
        return f"{parser.open_tag}call:{call.name}{{{members}}}{parser.close_tag}"

    return "".join(part if isinstance(part, str) else call_text(part) for part in parts)


def json_of_keys(strings: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    """JSON whose objects have keys that can be written bare."""
    return json_values(strings).filter(lambda value: all(map(is_bare, all_keys(value))))


def is_bare(key: str) -> bool:
    return bool(key) and key.strip() == key and not set(":,{}[]<") & set(key)


def all_keys(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [*value, *(key for inner in value.values() for key in all_keys(inner))]
    if isinstance(value, list):
        return [key for inner in value for key in all_keys(inner)]
    return []


def some_messages(parser: Any) -> st.SearchStrategy[list[Part]]:
    tags = (parser.open_tag, parser.close_tag, "}", "]")
    strings = texts(avoid=(parser.quote, parser.quote[:1]), tags=()) | st.sampled_from(tags)
    keys = st.from_regex(r"[a-z_][a-z0-9_]{0,7}", fullmatch=True)
    arguments = st.dictionaries(keys, json_of_keys(strings), max_size=3)
    return messages(avoid=(parser.open_tag, parser.close_tag), arguments=arguments)


@all_parsers
@quick
@given(data=st.data())
def test_reads_back_what_the_template_writes(parser, data) -> None:
    parts = data.draw(some_messages(parser))
    # What is between quotes is a string, whatever it looks like, where a schema says so.
    anything = {"type": ["string", "object", "array", "number", "boolean", "null"]}
    calls = [part for part in parts if isinstance(part, Call)]
    tools = [tool(call.name, **dict.fromkeys(call.arguments, anything)) for call in calls]
    assert_reads_back(parser, rendered(parser, parts), parts, tools)


@all_parsers
@quick
@given(data=st.data())
def test_damaged_texts_lose_nothing_and_cuts_do_not_matter(parser, data) -> None:
    whole = some_messages(parser).map(lambda parts: rendered(parser, parts))
    text = data.draw(damaged(whole, parser.markers))
    assert_no_text_is_lost(parser, text)
    assert_cuts_do_not_matter(parser, text)
    assert_cuts_do_not_matter(parser, text, TOOLS)


@all_parsers
def test_what_the_form_admits_is_read_back_as_valid_calls(parser) -> None:
    more = tool(
        "f",
        any={},
        short={"type": "string", "maxLength": 3},
        either={"anyOf": [{"type": "string"}, {"type": "null"}]},
        items={"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2},
    )
    assert_form_is_read_back(parser, [*TOOLS, more], examples=15)


@all_parsers
def test_the_form_keeps_to_lengths(parser) -> None:
    tools = [tool("f", text={"type": "string", "minLength": 2, "maxLength": 3})]
    form = parser.form(tools, parallel=False)
    for seed in range(10):
        text = random_text(form.calls, random.Random(seed))
        [call] = parse(parser, text, tools).tool_calls
        assert 2 <= len(json.loads(call.arguments)["text"]) <= 3


@all_parsers
def test_a_schema_that_the_notation_can_not_keep_to_has_no_form(parser) -> None:
    for schema in ({"type": "string", "pattern": "a"}, {"$ref": "#/$defs/x"}, {"not": {}}):
        assert parser.form([tool("f", a=schema)], parallel=True) is None


def test_gemma4_reads_what_its_template_writes() -> None:
    text = (
        "Let me see. <|tool_call>call:get-weather{city:<|\"|>Paris, }France<|\"|>,days:3,hot:true,"
        'rider:{name:<|"|>A<|"|>,<|"|>3<|"|>:null},stops:[<|"|>a]<|"|>,{},[]]}<tool_call|>'
        "<|tool_call>call:now{}<tool_call|>"
    )  # fmt: skip
    message = parse(Gemma4Parser(), text)
    assert message.content == "Let me see. "
    assert [(call.name, json.loads(call.arguments)) for call in message.tool_calls] == [
        (
            "get-weather",
            {
                "city": "Paris, }France",
                "days": 3,
                "hot": True,
                "rider": {"name": "A", "3": None},
                "stops": ["a]", {}, []],
            },
        ),
        ("now", {}),
    ]


def test_functiongemma_values_between_quotes_are_what_they_look_like_unless_a_schema_knows() -> (
    None
):
    text = (
        "<start_function_call>call:f{a:<escape>42<escape>,b:<escape>true<escape>,"
        "c:<escape>Hello World<escape>}<end_function_call>"
    )
    [call] = parse(FunctionGemmaParser(), text).tool_calls
    assert json.loads(call.arguments) == {"a": 42, "b": True, "c": "Hello World"}
    tools = [tool("f", a="string", b="boolean", c="integer")]
    [call] = parse(FunctionGemmaParser(), text, tools).tool_calls
    assert json.loads(call.arguments) == {"a": "42", "b": True, "c": "Hello World"}


def test_bare_values_go_by_the_schema() -> None:
    text = "<|tool_call>call:f{a:42,b:x[1,2],c:None}<tool_call|>"
    [call] = parse(Gemma4Parser(), text, [tool("f", a="string")]).tool_calls
    assert json.loads(call.arguments) == {"a": "42", "b": "x[1,2]", "c": None}


def test_the_end_tag_closes_what_is_open() -> None:
    message = parse(Gemma4Parser(), "<|tool_call>call:f{a:{b:[1,2<tool_call|> Done.")
    [call] = message.tool_calls
    assert (json.loads(call.arguments), message.content) == ({"a": {"b": [1, 2]}}, " Done.")


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("<|tool_call>call:f{", ""),
        ("<|tool_call>call:f{a:1", '{"a": 1'),
        ('<|tool_call>call:f{a:<|"|>x', '{"a": "x'),
        ("<|tool_call>call:f{a:[1", '{"a": [1'),
    ],
)
def test_what_is_cut_short_stays_as_it_is(text, arguments) -> None:
    [call] = parse(Gemma4Parser(), text).tool_calls
    assert call.arguments == arguments


@pytest.mark.parametrize("rest", ["", "call:", "call:f", "hm", "call:{}<tool_call|>"])
def test_tags_without_calls_are_content(rest) -> None:
    text = f"<|tool_call>{rest}"
    assert parse(Gemma4Parser(), text).content == text


def test_strings_come_as_they_are_written() -> None:
    stream = Gemma4Parser().stream()
    pieces = ('<|tool_call>call:f{a:<|"|>one', " two", '<|"', "|>}<tool_call|>")
    deltas = [delta.arguments for piece in pieces for delta in stream.feed(piece)]
    assert deltas == [None, '{"a": "one', " two", '"}']


def test_names_are_registered() -> None:
    for name in ("functiongemma", "gemma4"):
        assert get_tool_parser(name).parse("hello").content == "hello"


@pytest.mark.parametrize(
    ("inside", "arguments"),
    [
        ("a{b:c", '{"a": {"b": "c"}}'),  # the tag ends what is open
        ("n", '{"n": }'),
        ("a:1,n", '{"a": 1, "n": }'),
        ("a:[1,b", '{"a": [1, "b"]}'),
        ("a:b<c,d<e:1}", '{"a": "b<c", "d": "<e:1"}'),
        ("]a,b]:1}", '{"": "]a", "b": "]:1"}'),
        ("a:[x{y{z,1}},},2]}", '{"a": ["x{y{z,1}}", "}", 2]}'),
        ("[1,{", '{"": [1, {}]}'),
    ],
)
@all_parsers
def test_what_is_odd_in_arguments_stays_in_them_and_the_tag_is_their_end(
    parser, inside, arguments
) -> None:
    text = f"{parser.open_tag}call:f{{{inside}{parser.close_tag}rest, 1}}"
    for pieces in ([text], list(text), [text[:30], text[30:]]):
        message = parsed(parser.stream(), *pieces)
        assert [call.arguments for call in message.tool_calls] == [arguments]
        assert message.content == "rest, 1}"
