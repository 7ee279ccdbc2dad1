"""Each test reads its text whole and character by character; both must do the same."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.tools import Reader, Reading, Stream, ignore, parsed
from octavo.tools import reader as reading
from octavo_registry import Delta, ParsedMessage, ToolCall


def read(parse: Callable[[Reader], Reading[None]], text: str) -> ParsedMessage:
    whole = parsed(Stream(parse), text)
    assert parsed(Stream(parse), *text) == whole
    return whole


def results(parse: Callable[[Reader], Reading[object]], text: str) -> list[object]:
    """What ``parse`` returns, and the text that it leaves unread."""
    found: list[list[object]] = []

    def keep(reader: Reader) -> Reading[None]:
        found.append([(yield from parse(reader))])
        rest: list[str] = []
        yield from reader.text_until(to=rest.append)
        found[-1].append("".join(rest))

    read(keep, text)
    assert found[0] == found[1]
    return found[0]


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("one<a>two", ["one", "<a>", "two"]),
        ("one<a", ["one<a", None, ""]),
        ("<a", ["<a", None, ""]),
        ("<<a>", ["<", "<a>", ""]),
        ("<a><ab>", ["", "<a>", "<ab>"]),
        ("x<ab>", ["x", "<ab>", ""]),
        ("x<ab", ["x", "<ab", ""]),
        ("x<ay", ["x<ay", None, ""]),
        ("", ["", None, ""]),
    ],
)
def test_text_until_finds_the_first_of_its_tags_and_the_longest_there(text, result) -> None:
    def parse(reader: Reader) -> Reading[object]:
        return (yield from reader.read_until("<a>", "<ab>", "<ab"))

    (before, tag), rest = results(parse, text)
    assert [before, tag, rest] == result


def test_text_until_passes_on_all_that_cannot_begin_a_tag() -> None:
    stream = Stream(lambda reader: reader.text_until("<call>"))
    assert stream.feed("a <c") == [Delta(content="a ")]
    assert stream.feed("al") == []
    assert stream.feed("m> <") == [Delta(content="<calm> ")]
    assert stream.finish() == [Delta(content="<")]


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("abc", ["ab", "c"]),
        ("ac", ["a", "c"]),
        ("a", ["a", ""]),
        ("b", [None, "b"]),
        ("", [None, ""]),
    ],
)
def test_literal_reads_the_longest_text_that_is_next_or_nothing(text, result) -> None:
    assert results(lambda reader: reader.literal("a", "ab"), text) == result


def test_peek_reads_nothing_and_is_shorter_at_the_end() -> None:
    assert results(lambda reader: reader.peek(2), "abc") == ["ab", "abc"]
    assert results(lambda reader: reader.peek(2), "a") == ["a", "a"]


def test_take_while_reads_a_run_of_a_class() -> None:
    assert results(lambda reader: reader.take_while("[a-c]"), "abcd") == ["abc", "d"]
    assert results(lambda reader: reader.take_while("[a-c]"), "d") == ["", "d"]


def test_skip_leaves_out_a_text_and_the_space_before_it_or_nothing() -> None:
    assert read(lambda reader: reader.skip(";"), " \n; x").content == " x"
    assert read(lambda reader: reader.skip(";"), " \n, x").content == " \n, x"


@pytest.mark.parametrize(
    ("text", "value", "complete"),
    [
        ('{"a": "}", "b": [1, {}]}, 2', '{"a": "}", "b": [1, {}]}', True),
        (r'"a\"b\\" c', r'"a\"b\\"', True),
        ("[[]]]", "[[]]", True),
        ("-1.5e+3, 2", "-1.5e+3", True),
        ("true}", "true", True),
        ('{"a": "\\', '{"a": "\\', False),
        ('{"a": 1 </call>', '{"a": 1 ', False),
        ('{"a": "</call>"}', '{"a": "</call>"}', True),
        ('{"a": 1, }', '{"a": 1, }', True),
        ("", "", False),
        (", 1", "", False),
    ],
)
def test_json_value_passes_on_one_value_as_it_is_written(text, value, complete) -> None:
    def parse(reader: Reader) -> Reading[object]:
        parts: list[str] = []
        complete = yield from reader.json_value(to=parts.append)
        return complete, "".join(parts)

    assert results(parse, text) == [(complete, value), text[len(value) :]]


JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(JSON, st.booleans())
def test_every_json_value_is_followed_to_its_end(value, ascii_only) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)

    def parse(reader: Reader) -> Reading[object]:
        parts: list[str] = []
        return (yield from reader.json_value(to=parts.append)), "".join(parts)

    assert results(parse, f"{text} }}") == [(True, text), " }"]


@given(st.text(st.characters(exclude_categories=("Cs",))), st.booleans())
def test_a_json_string_is_unescaped_as_it_comes(value, ascii_only) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)

    def parse(reader: Reader) -> Reading[object]:
        parts: list[str] = []
        return (yield from reader.json_string_text(to=parts.append)), "".join(parts)

    assert results(parse, f"{text}.") == [(True, value), "."]
    assert results(lambda reader: reader.json_string(), f"{text}.") == [value, "."]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (r'"\ud83d\ude00"', "😀"),
        (r'"\ud83d"', r"\ud83d"),
        (r'"\ud83d\u0041"', r"\ud83dA"),
        (r'"\udc00 \q \u12"', r"\udc00 \q \u12"),
        ('"a\nb"', "a\nb"),
        (r'"a\u00', r"a\u00"),
        ('"a\\', "a\\"),
    ],
)
def test_what_is_no_escape_of_json_stays_in_the_text(text, said) -> None:
    parts: list[str] = []

    def parse(reader: Reader) -> Reading[object]:
        parts.clear()
        yield from reader.json_string_text(to=parts.append)
        return "".join(parts)

    assert results(parse, text) == [said, ""]


def test_only_what_has_escapes_is_decoded_in_a_string_that_comes_by_characters(monkeypatch) -> None:
    decoded: list[str] = []
    loads = json.loads

    def counted(text: str, *, strict: bool) -> object:
        decoded.append(text)
        return loads(text, strict=strict)

    monkeypatch.setattr(json, "loads", counted)
    parts: list[str] = []
    text = "ab'[{<文\n" * 1000
    stream = Stream(lambda reader: reader.json_string_text(to=parts.append))
    parsed(stream, *f'"{text}\\u00e9{text}"')
    assert "".join(parts) == f"{text}é{text}"
    assert decoded == [r'"\u00e9"']


def test_what_is_held_becomes_content_or_belongs_to_the_call() -> None:
    def parse(reader: Reader) -> Reading[None]:
        while tag := (yield from reader.text_until("#")):
            reader.hold(tag)
            name = yield from reader.take_while("[a-z]")
            if (yield from reader.literal("!")):
                reader.call(name)
            elif (yield from reader.literal("?")):
                reader.drop()
            else:
                reader.give_back()

    assert read(parse, "a #b! c #d e #f? g #h") == ParsedMessage(
        content="a  c #d e  g #h", tool_calls=(ToolCall(name="b", arguments=""),)
    )


def test_what_a_parser_leaves_unread_or_holds_at_the_end_is_content() -> None:
    def parse(reader: Reader) -> Reading[None]:
        yield from reader.literal("a")
        reader.hold("a")
        yield from reader.literal("b")

    assert read(parse, "abcd").content == "abcd"


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (" \n", " \n"),
        ("\n#\n", None),
        (" # \n # ", None),
        (" a\n#\n b ", " a\n\n b "),
        ("#  ", None),
        ("", None),
    ],
)
def test_white_space_alone_around_calls_is_dropped_and_other_space_stays(text, content) -> None:
    def parse(reader: Reader) -> Reading[None]:
        while (yield from reader.text_until("#")):
            reader.call("f")

    assert read(parse, text).content == content


def test_neighbouring_pieces_of_a_kind_are_one_delta() -> None:
    def parse(reader: Reader) -> Reading[None]:
        yield from reader.text_until("#")
        reader.reasoning("r")
        reader.reasoning("s")
        reader.call("f", "id")
        reader.arguments("{")
        reader.arguments("}")
        reader.call("g")
        yield from reader.text_until("#", to=ignore)

    assert Stream(parse).feed("a#b#c") == [
        Delta(content="a"),
        Delta(reasoning="rs"),
        Delta(tool_call_index=0, name="f", id="id"),
        Delta(tool_call_index=0, arguments="{}"),
        Delta(tool_call_index=1, name="g"),
        Delta(content="c"),
    ]


@pytest.mark.parametrize("unit", ["<", "<a", "a", " "])
def test_a_long_text_is_read_in_time_that_grows_with_its_length(unit) -> None:
    text = unit * (2**18 // len(unit))
    began = time.process_time()
    parsed(Stream(lambda reader: reader.text_until("<ab>")), *text)
    assert time.process_time() - began < 8  # a hundredth of what rereading would take


def test_hard_text_waits_for_more_after_thousands_of_characters_and_then_for_little() -> None:
    stream = Stream(lambda reader: reader.text_until("<<"))
    share = reading._HARD_PER_WAITING
    told: list[int] = []
    for _ in range(25 * share):
        deltas = stream.feed("<a")
        told.append(sum(len(delta.content or "") for delta in deltas))
    assert told[: share // 2] == [2] * (share // 2)  # as it comes
    assert told.count(0) > 0.8 * len(told)
    waits, longest = 0, 0
    for each in told:
        waits = 0 if each else waits + 2
        longest = max(longest, waits)
    assert longest <= 50
    assert sum(told) + sum(len(delta.content or "") for delta in stream.finish()) == len(told) * 2


def test_what_a_parser_need_not_read_on_for_never_waits() -> None:
    stream = Stream(lambda reader: reader.text_until("<<"))
    for _ in range(4 * reading._HARD_PER_WAITING):
        stream.feed("<a")
    stream.feed("b" * 100)
    assert stream.feed("c") == [Delta(content="c")]
