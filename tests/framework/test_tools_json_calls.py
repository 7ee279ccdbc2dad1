from __future__ import annotations

import pytest

from octavo.tools import Reader, Reading, Stream, parsed
from octavo.tools.json_calls import json_call, json_calls, tagged_calls

CALL = '{"name": "f", "arguments": {"a": 1}}'


def read(text: str, *, only_one: bool = False, needs_arguments: bool = False):
    """Content and calls of a text that is read as calls, the rest of it being content."""

    def parse(reader: Reader) -> Reading[None]:
        reader.hold()
        read_calls = json_call if only_one else json_calls
        if not (yield from read_calls(reader, needs_arguments=needs_arguments)):
            reader.give_back()

    message = parsed(Stream(parse), text)
    assert parsed(Stream(parse), *text) == message
    return message.content, [(call.name, call.arguments) for call in message.tool_calls]


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (CALL, [("f", '{"a": 1}')]),
        ('{"arguments": {"a": 1}, "name": "f"}', [("f", '{"a": 1}')]),
        ('{ "name" :\n"f" , "parameters" : { } }', [("f", "{ }")]),
        ('{"id": {"x": "}"}, "name": "f", "arguments": {}, "type": "function"}', [("f", "{}")]),
        ('{"name": "f"}', [("f", "{}")]),
        ('{"name": "f", "arguments": null}', [("f", "{}")]),
        (r'{"name": "f", "arguments": "{\"a\": \"\\n\"}"}', [("f", r'{"a": "\n"}')]),
        (r'{"name": "\u0066", "arguments": {}}', [("f", "{}")]),
        (f"[{CALL}, {CALL}]", [("f", '{"a": 1}')] * 2),
        (f"[\n{CALL} ]", [("f", '{"a": 1}')]),
    ],
)
def test_calls_are_found_whatever_their_layout(text, calls) -> None:
    assert read(text) == (None, calls)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "[1]",
        "{oops",
        '{"name": 5, "arguments": {}}',
        '{"name": "", "arguments": {}}',
        '{"name": "f"',
        '{"name": "f", "arguments": ',
        '{"name": "f", "arguments": 5}',
        '{"parameters": [ ], "name": "f"}',
        '{"name": "f", "argum": {}}',
        '{"arguments": {}}',
        '{"name": "f", "name": "g", "arguments": {}}',
    ],
)
def test_what_is_no_call_is_given_back(text) -> None:
    assert read(text) == (text or None, [])


def test_a_name_alone_is_no_call_where_arguments_tell_calls_from_other_objects() -> None:
    assert read('{"name": "Ada"}', needs_arguments=True) == ('{"name": "Ada"}', [])


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (f"{CALL}}} then", "} then", [("f", '{"a": 1}')]),
        ('{"name": "f", "arguments": {"a": 1', None, [("f", '{"a": 1')]),
        ('{"name": "f", "arguments": {"a": <b>}', "<b>}", [("f", '{"a": ')]),
        ('{"name": "f", "arguments": {}, oops', " oops", [("f", "{}")]),
        ('{"name": "f", "arguments": {}, "x": 1 oops', ' "x": 1 oops', [("f", "{}")]),
        ('{"name": "f", "arguments": {}, "arguments": 1}', ' "arguments": 1}', [("f", "{}")]),
        (f"[{CALL}, oops]", "oops]", [("f", '{"a": 1}')]),
        (f'[{CALL}, {{"a": 1}}]', '{"a": 1}', [("f", '{"a": 1}')]),
    ],
)
def test_what_is_faulty_after_a_call_has_begun_is_kept(text, content, calls) -> None:
    assert read(text) == (content, calls)


def test_tagged_calls_need_no_closing_tag_and_leave_out_a_late_one() -> None:
    def parse(reader: Reader) -> Reading[None]:
        yield from tagged_calls(reader, opens=("<c>",), closes=("</c>",))

    for text, content in (
        (f"<c>{CALL}</c> x", " x"),
        (f"<c> {CALL}\n</c> x", " x"),
        (f"<c>{CALL} x", " x"),
        (f"<c>{CALL}}}</c> x", "} x"),
        (f"<c>{CALL}<c>{CALL}</c></c>", "</c>"),
        ("<c>x</c>", "<c>x</c>"),
    ):
        message = parsed(Stream(parse), text)
        assert message == parsed(Stream(parse), *text)
        assert message.content == content
