"""Logprobs come with the content that their tokens' text is in, however tokens are cut."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import pytest

from octavo.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput, TokenLogprobs
from octavo.tools import MessageStream, get_reasoning_parser, get_tool_parser
from octavo.tools.answer_format import ExpectedAnswer
from octavo.tools.answer_reader import AnswerReader
from octavo_registry import Delta, PluginHost

CALL = '<tool_call>\n{"name": "f", "arguments": {"x": "1 << 2; so </x>"}}\n</tool_call>'
PARTS = [
    ("<think>", "mark"),
    ("Is 1 << 2; so?", "reasoning"),
    ("</think>", "mark"),
    ("1 << 2; so <b>four</b>, dé<tool", "content"),
    (CALL, "mark"),
    ("\n", "mark"),
    (CALL, "mark"),
    ("so <</x> 1 << 2; four", "content"),
]
TEXT = "".join(text for text, _ in PARTS)
KINDS = [kind for text, kind in PARTS for _ in text]
CONTENT = "".join(text for text, kind in PARTS if kind == "content")

HERMES = get_tool_parser("hermes").parser
QWEN = get_reasoning_parser("qwen3").parser
EXPECTED = ExpectedAnswer(
    guided=None,
    new_stream=lambda: MessageStream(reasoning=QWEN.stream(), tools=HERMES.stream()),
)


def logprobs_of(number: int) -> TokenLogprobs:
    return {number: Logprob(-1.0, 1, str(number))}


def output(
    text: str, starts: list[int], numbers: list[int], *, ended: bool = True
) -> RequestOutput:
    each = CompletionOutput(
        0, text, numbers, logprobs=[*map(logprobs_of, numbers)], token_starts=starts,
        finish_reason="stop" if ended else None,
    )  # fmt: skip
    return RequestOutput("r", None, [], [each], ended, RequestMetrics(0.0))


def given(read: CompletionOutput) -> list[tuple[Delta, list[int]]]:
    assert read.deltas is not None
    assert read.delta_logprobs is not None
    tokens = [[next(iter(each)) for each in some] for some in read.delta_logprobs]
    return list(zip(read.deltas, tokens, strict=True))


def check(got: list[tuple[Delta, list[int]]], starts: list[int]) -> None:
    """Each token of content is there once, in order, and in the delta of its first character."""
    ends = [*starts[1:], len(TEXT)]
    visible = {}
    for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
        places = [i for i in range(start, end) if KINDS[i] != "mark"]
        if places and KINDS[places[0]] == "content":
            visible[number] = KINDS[: places[0]].count("content")
    assert "".join(delta.content or "" for delta, _ in got) == CONTENT
    assert [number for _, numbers in got for number in numbers] == list(visible)
    begin = 0
    for delta, numbers in got:
        end = begin + len(delta.content or "")
        assert all(begin <= visible[number] < end for number in numbers), (delta, numbers)
        begin = end


@pytest.mark.parametrize("longest", [1, 3, 12, 200])
def test_tokens_go_where_their_first_visible_character_goes(longest: int) -> None:
    chance = random.Random(longest)
    for _ in range(60):
        ends = [*accumulate(chance.randint(1, longest) for _ in TEXT)]
        starts = [0, *(end for end in ends if end < len(TEXT))]
        numbers = [*range(len(starts))]

        whole = output(TEXT, starts, numbers)
        AnswerReader(EXPECTED, in_pieces=False).take(whole)
        check(given(whole.outputs[0]), starts)

        pieces = AnswerReader(EXPECTED, in_pieces=True)
        got: list[tuple[Delta, list[int]]] = []
        places = sorted({0, len(starts), *chance.choices(numbers, k=9)})
        shown = 0
        for first, last in pairwise(places):
            read = starts[last] if last < len(starts) else len(TEXT)
            held = 0 if last == len(starts) else chance.randint(0, read - shown)
            piece = output(
                TEXT[shown : read - held], starts[first:last], numbers[first:last],
                ended=last == len(starts),
            )  # fmt: skip
            pieces.take(piece)
            got += given(piece.outputs[0])
            shown = read - held
        check(got, starts)


def test_outputs_that_grow_are_read_on() -> None:
    reader = AnswerReader(EXPECTED, in_pieces=False)
    for end in (20, 60, len(TEXT)):
        grown = output(TEXT[:end], [*range(end)], [*range(end)], ended=end == len(TEXT))
        reader.take(grown)
    check(given(grown.outputs[0]), [*range(len(TEXT))])


def test_tokens_without_text_go_with_the_next_that_has_some() -> None:
    text = "<think>a</think>é."
    starts = [0, 7, 8, 16, 16, 17, 18]  # two tokens make the é, and the last one ends the answer
    answer = output(text, starts, [*range(7)])
    AnswerReader(EXPECTED, in_pieces=False).take(answer)
    assert [numbers for _, numbers in given(answer.outputs[0]) if numbers] == [[3, 4], [5]]


def test_what_a_parser_writes_itself_is_no_tokens() -> None:
    class Framing:
        def feed(self, text):
            return [Delta(content="- "), Delta(content=f"\n{text}"), Delta(content=" ")]

        def finish(self):
            return [Delta(content="!")]

    answer = output("abcd", [0, 2], [0, 1])
    made = ExpectedAnswer(guided=None, new_stream=lambda: MessageStream(tools=Framing()))
    AnswerReader(made, in_pieces=False).take(answer)
    assert [numbers for _, numbers in given(answer.outputs[0])] == [[], [0], [], [], [1], [], []]


def cases() -> Iterator[tuple[Any, str]]:
    host = PluginHost.discover()
    for registry in (host.tool_parsers, host.reasoning_parsers):
        for parser in (registry.load(name)(None) for name in registry.names()):
            for sample in parser.samples:
                yield parser, sample
                yield parser, f"1 << 2 <b> [{sample} Done << [a] {{x}} <c>"


def test_every_parsers_content_is_found_again() -> None:
    for parser, text in cases():
        made = ExpectedAnswer(guided=None, new_stream=partial(MessageStream, tools=parser.stream()))
        answer = output(text, [*range(len(text))], [*range(len(text))])
        AnswerReader(made, in_pieces=False).take(answer)
        got = given(answer.outputs[0])
        content = "".join(delta.content or "" for delta, _ in got)
        found = "".join(text[number] for _, numbers in got for number in numbers)
        # Those of gpt-oss put messages of several channels on lines of their own.
        assert found in (content, content.replace("\n", "")), text


def test_without_logprobs_nothing_is_followed() -> None:
    each = CompletionOutput(0, TEXT, [], finish_reason="stop")
    AnswerReader(EXPECTED, in_pieces=False).take(
        RequestOutput("r", None, [], [each], True, RequestMetrics(0.0))
    )
    assert each.delta_logprobs is None
