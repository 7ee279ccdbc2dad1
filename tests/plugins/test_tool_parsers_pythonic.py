"""Calls written as Python: pythonic, llama4_pythonic, lfm2 and olmo3."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.tools import get_tool_parser
from octavo_plugins.tool_parsers.pythonic.parser import (
    Lfm2Parser,
    Llama4PythonicParser,
    Olmo3Parser,
    PythonicParser,
)
from tool_parsers import (
    NAMES,
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

PARSERS = [PythonicParser(), Llama4PythonicParser(), Lfm2Parser(), Olmo3Parser()]
FORMATS = {
    PythonicParser: ("[", ", ", "]"),
    Llama4PythonicParser: ("<|python_start|>[", ", ", "]<|python_end|>"),
    Lfm2Parser: ("<|tool_call_start|>[", ", ", "]<|tool_call_end|>"),
    Olmo3Parser: ("<function_calls>\n", "\n", "\n</function_calls>"),
}
TAGS = ("<|tool_call_end|>", "</function_calls>", "<|python_end|>", ")]", "', b='")


def call_text(call: Call) -> str:
    arguments = ", ".join(f"{key}={value!r}" for key, value in call.arguments.items())
    return f"{call.name}({arguments})"


def rendered(parser: Any, parts: Sequence[Part]) -> str:
    """Neighbouring calls stand in one list."""
    before, between, after = FORMATS[type(parser)]
    text = ""
    for at, part in enumerate(parts):
        if isinstance(part, str):
            text += part
            continue
        follows = at > 0 and isinstance(parts[at - 1], Call)
        text = text.removesuffix(after) + between if follows else text + before
        text += call_text(part) + after
    return text


def some_messages(*, names: st.SearchStrategy[str] = NAMES) -> st.SearchStrategy[list[Part]]:
    strings = texts(tags=TAGS)
    keys = st.from_regex(r"[a-z_][a-z0-9_]{0,7}", fullmatch=True)
    arguments = st.dictionaries(keys, json_values(strings), max_size=3)
    avoid = ("[", "<|", "<function_calls>", "</function_calls>")
    return messages(avoid=avoid, names=names, arguments=arguments)


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: type(parser).__name__)
@quick
@given(data=st.data())
def test_reads_back_what_python_would_write(parser, data) -> None:
    names = st.sampled_from(["get-weather", "search", "a.b"])
    tools = [tool(name) for name in ("get-weather", "search", "a.b")]
    parts = data.draw(some_messages(names=names))
    assert_reads_back(parser, rendered(parser, parts), parts, tools)


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: type(parser).__name__)
@quick
@given(data=st.data())
def test_damaged_texts_lose_nothing_and_cuts_do_not_matter(parser, data) -> None:
    text = data.draw(damaged(some_messages().map(lambda parts: rendered(parser, parts)), TAGS))
    assert_no_text_is_lost(parser, text)
    assert_cuts_do_not_matter(parser, text)
    assert_cuts_do_not_matter(parser, text, TOOLS)


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: type(parser).__name__)
def test_what_the_form_admits_is_read_back_as_valid_calls(parser) -> None:
    assert_form_is_read_back(parser, examples=15)
    assert_form_is_read_back(parser, [tool("all_optional")], examples=2)


ARGUMENTS = [
    ("city='San Francisco', n=37", {"city": "San Francisco", "n": 37}),
    ("ok=True, role=None, on=true, off=null", {"ok": True, "role": None, "on": True, "off": None}),
    (
        "a={'b': {'c': [1, 2.5, 'x']}}, d=[], e={}",
        {"a": {"b": {"c": [1, 2.5, "x"]}}, "d": [], "e": {}},
    ),
    ("", {}),
    (
        "t=(1, 'b'), s={'u', 'v'}, k={1: 2, None: 3}",
        {"t": [1, "b"], "s": ["u", "v"], "k": {"1": 2, "null": 3}},
    ),
    (
        r"a='Martha\'s', b='\"x\"', c='\n\\ \d \x41\u00e9\101'",
        {"a": "Martha's", "b": '"x"', "c": "\n\\ \\d AéA"},
    ),
    ("a='''it's''', b='one ' \"two\"", {"a": "it's", "b": "one two"}),
    ("month=07, n=1_000, h=0x1F, f=.5, m=-3", {"month": 7, "n": 1000, "h": 31, "f": 0.5, "m": -3}),
    ("big=123456789012345678901", {"big": 123456789012345678901}),
    ("unit=celsius, when=date(2024, 1)", {"unit": "celsius", "when": "date(2024, 1)"}),
    ("raw=b'z', sum=1+2", {"raw": "b'z'", "sum": "1+2"}),
    (r"a='\ud83d\ude00', b='\U0001F600\U0000D83D'", {"a": "😀", "b": "😀\ud83d"}),
    # Templates put strings between quotes as they are, and models learn it.
    ("a='it's fine', b='x'", {"a": "it's fine", "b": "x"}),
    ("command='sed -n '360,450p' /x/common.py'", {"command": "sed -n '360,450p' /x/common.py"}),
    ("a='grep -F \"]\" log', b='x\ny'", {"a": 'grep -F "]" log', "b": "x\ny"}),
    ("f='print(g('\\\\,'))\"', b=1", {"f": "print(g('\\,'))\"", "b": 1}),
    ("a = 1 ,\n b = [ 1 , 2 , ] , ", {"a": 1, "b": [1, 2]}),
]


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: type(parser).__name__)
@pytest.mark.parametrize(("arguments", "expected"), ARGUMENTS)
def test_python_literals_become_json(parser, arguments, expected) -> None:
    before, _, after = FORMATS[type(parser)]
    text = f"{before}f({arguments}){after}"
    [call] = parse(parser, text).tool_calls
    assert json.loads(call.arguments.encode()) == expected
    assert_cuts_do_not_matter(parser, text)


def test_arguments_come_as_they_are_written() -> None:
    stream = PythonicParser().stream()
    pieces = ("[f(a='one", " two", " three') ]")
    deltas = [delta.arguments for piece in pieces for delta in stream.feed(piece)]
    assert deltas == [None, '{"a": "one', " two", ' three"}']


def test_types_of_the_schema_decide_where_the_literal_does_not() -> None:
    tools = [
        tool(
            "f",
            zip="string",
            n="integer",
            ok="boolean",
            word={"type": ["string", "null"]},
            inner="object",
        )
    ]
    text = "[f(zip=01234, n='9', ok='true', word=None, inner={'name': 'null', 'n': '9'})]"
    [call] = parse(PythonicParser(), text, tools).tool_calls
    expected = {"zip": "01234", "n": 9, "ok": True, "word": None}
    # What is inside of other values is what it is written as.
    assert json.loads(call.arguments) == {**expected, "inner": {"name": "null", "n": "9"}}


@pytest.mark.parametrize(
    "text",
    [
        "See [1], [x](y), [the docs](f(a=1)) and a[i](j).",
        "x = [f(a=1) for f in g]",
        "[]",
        "[f(1)]",
        "[x[f(a=1)]",
        "[f",
        "[f(",
        "[f(a",
        "[ f(a) ]",
    ],
)
def test_text_that_is_no_call_is_content(text) -> None:
    message = parse(PythonicParser(), text)
    assert (message.content, message.tool_calls) == (text, ())


def test_calls_inside_a_line_must_be_of_the_tools() -> None:
    text = "Let me check: [search(query='x')] and [other(a=1)]"
    message = parse(PythonicParser(), text, TOOLS)
    assert [call.name for call in message.tool_calls] == ["search"]
    assert message.content == "Let me check:  and [other(a=1)]"


def test_malformed_calls_keep_their_text() -> None:
    arguments = {
        "[f(a='x": '{"a": "x',
        "[f(a=": '{"a": ',
        "[f(a=1, b": '{"a": 1, b',
        "[f(a=[1, 2": '{"a": [1, 2',
        "[f(a=[1] 2, b=3)]": '{"a": [1] 2, "b": 3}',
        "[f(a=1, 'x')]": """{"a": 1, 'x'}""",
    }
    for text, expected in arguments.items():
        [call] = parse(PythonicParser(), text).tool_calls
        assert call.arguments == expected


def test_what_is_no_call_behind_calls_is_content() -> None:
    message = parse(PythonicParser(), "[f(a=1), none of these]")
    assert (message.content, len(message.tool_calls)) == ("none of these]", 1)


def test_end_tags_end_what_is_not_closed() -> None:
    message = parse(Lfm2Parser(), "<|tool_call_start|>[f(a=1<|tool_call_end|> Done.")
    assert (message.content, message.tool_calls[0].arguments) == (" Done.", '{"a": 1')


def test_lfm2_reads_json_too() -> None:
    text = '<|tool_call_start|>[{"name": "f", "arguments": {"a": 1}}]<|tool_call_end|> Done.'
    message = parse(Lfm2Parser(), text)
    assert (message.content, message.tool_calls[0].arguments) == (" Done.", '{"a": 1}')


CALLS = """[f(a='<|tool_call_end|>', b=[1]), g()]"""
JSON_CALL = '[{"name": "f", "arguments": {"a": "x"}}]'


@pytest.mark.parametrize(
    ("calls", "behind", "content"),
    [
        (CALLS, CALLS, None),
        (CALLS, f"\n{CALLS}\n", None),
        (CALLS, f"{CALLS} Checking.", " Checking."),
        (JSON_CALL, JSON_CALL, None),
        (CALLS, CALLS[:-1], CALLS[:-1]),
        (CALLS, " [f(b=[1]), g()]", " [f(b=[1]), g()]"),
        (CALLS, CALLS + CALLS, CALLS),
        (CALLS, f"So: {CALLS}", f"So: {CALLS}"),
    ],
)
def test_calls_that_are_repeated_behind_their_tag_are_left_out(calls, behind, content) -> None:
    tagged = f"<|tool_call_start|>{calls}<|tool_call_end|>"
    once, message = parse(Lfm2Parser(), tagged), parse(Lfm2Parser(), tagged + behind)
    assert (message.content, message.tool_calls) == (content, once.tool_calls)
    assert len(once.tool_calls) == (2 if calls == CALLS else 1)
    text = tagged + behind
    for end in range(len(text)):
        parts = (text[:end], text[end:])
        assert parse(Lfm2Parser(), "", None, *parts) == message
    assert_cuts_do_not_matter(Lfm2Parser(), text)


def test_calls_with_other_text_behind_them_have_no_echo() -> None:
    text = "<|tool_call_start|>[f(a=1)] oops<|tool_call_end|>[f(a=1)]"
    message = parse(Lfm2Parser(), text)
    assert (message.content, len(message.tool_calls)) == ("oops[f(a=1)]", 1)


def test_tags_without_calls_are_content() -> None:
    for parser, text in [
        (Llama4PythonicParser(), "<|python_start|>print(1)<|python_end|>"),
        (Lfm2Parser(), "<|tool_call_start|>[]<|tool_call_end|>"),
        (Olmo3Parser(), "<function_calls>\nnone\n</function_calls>"),
    ]:
        assert parse(parser, text).content == text


def test_names_are_registered() -> None:
    for name in ("pythonic", "llama4_pythonic", "lfm2", "olmo3"):
        assert get_tool_parser(name).parse("hello").content == "hello"


def test_a_schema_that_keywords_can_not_keep_to_has_no_form() -> None:
    strict = {"name": "f", "parameters": {"properties": {"a b": True}}}
    assert PythonicParser().form([{"type": "function", "function": strict}], parallel=True) is None
