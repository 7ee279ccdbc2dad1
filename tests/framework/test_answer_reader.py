"""Answers are taken apart as their text comes: reasoning, content and calls."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from octavo.errors import RequestFailedError
from octavo.outputs import CompletionOutput, RequestMetrics, RequestOutput
from octavo.server.protocol.tool_calls import (
    CalledFunction,
    MessageToolCall,
    delta_fields,
    message_fields,
)
from octavo.tools import MessageStream, Stream, get_reasoning_parser, get_tool_parser
from octavo.tools.answer_format import AnswerFormat, ExpectedAnswer
from octavo.tools.answer_reader import AnswerReader
from octavo.tools.choice import read_tool_use
from octavo_registry import Delta, ParsedMessage, ToolCall

CALL = '<tool_call>\n{"name": "get_time", "arguments": {"city": "Rome"}}\n</tool_call>'
TOOL = {"type": "function", "function": {"name": "get_time"}}
HERMES = get_tool_parser("hermes").parser
QWEN = get_reasoning_parser("qwen3").parser


def expected(*, parallel: bool | None = None, reasons: bool = False) -> ExpectedAnswer:
    answers = AnswerFormat(tool_parser=HERMES, reasoning_parser=QWEN if reasons else None)
    return answers.expect("", read_tool_use([TOOL], None, parallel), None)


def output(text: str, finish_reason: Any = "stop", index: int = 0) -> RequestOutput:
    each = CompletionOutput(index, text, [], finish_reason=finish_reason)
    return RequestOutput("r", None, [], [each], True, RequestMetrics(0.0))


def whole(made: ExpectedAnswer, text: str) -> ParsedMessage:
    reply = output(text)
    AnswerReader(made, in_pieces=False).take(reply)
    assert reply.outputs[0].message is not None
    return reply.outputs[0].message


def without_ids(message: ParsedMessage) -> ParsedMessage:
    calls = tuple(replace(call, id=None) for call in message.tool_calls)
    return replace(message, tool_calls=calls)


TEXT = f"<think>Rome, then.</think>I look.\n{CALL}\n{CALL}"
TAKEN_APART = ParsedMessage(
    reasoning="Rome, then.",
    content="I look.\n",
    tool_calls=(ToolCall(name="get_time", arguments='{"city": "Rome"}'),) * 2,
)


def test_reasoning_content_and_calls_come_apart_whole_and_in_pieces() -> None:
    made = expected(reasons=True)
    message = whole(made, TEXT)
    assert without_ids(message) == TAKEN_APART
    reader = AnswerReader(made, in_pieces=True)
    deltas = []
    for place, character in enumerate(TEXT):
        piece = output(character, None if place + 1 < len(TEXT) else "stop")
        reader.take(piece)
        deltas += piece.outputs[0].deltas or []
    assert without_ids(ParsedMessage.joined(deltas)) == TAKEN_APART
    reader = AnswerReader(made, in_pieces=False)
    for end in range(len(TEXT) + 1):
        grown = output(TEXT[:end], None if end < len(TEXT) else "stop")
        reader.take(grown)
    reader.take(grown)  # with another continuation's news
    assert without_ids(grown.outputs[0].message) == TAKEN_APART


def test_each_call_gets_an_id_of_its_own_that_all_templates_take() -> None:
    ids = [call.id for call in whole(expected(), TEXT).tool_calls]
    assert len(set(ids)) == 2
    assert all(each and len(each) == 9 and each.isalnum() for each in ids)


def test_an_id_of_the_models_is_kept() -> None:
    def read(reader):
        name = yield from reader.take(1)
        reader.call(name, "functions.f:0")

    made = ExpectedAnswer(guided=None, new_stream=lambda: MessageStream(tools=Stream(read)))
    assert whole(made, "f").tool_calls[0].id == "functions.f:0"


def test_without_parallel_calls_the_first_is_the_only_one() -> None:
    assert len(whole(expected(parallel=False), TEXT).tool_calls) == 1


def test_a_stream_is_finished_once() -> None:
    class Counting:
        finishes = 0

        def feed(self, text):
            return [Delta(content=text)]

        def finish(self):
            self.finishes += 1
            return [Delta(content="!")]

    stream = Counting()
    made = ExpectedAnswer(guided=None, new_stream=lambda: MessageStream(tools=stream))
    reader = AnswerReader(made, in_pieces=False)
    for _ in range(2):  # the second time with another continuation's news
        again = output("a")
        reader.take(again)
    assert again.outputs[0].message == ParsedMessage(content="a!")
    assert stream.finishes == 1


def test_continuations_do_not_mix() -> None:
    reader = AnswerReader(expected(), in_pieces=True)
    half = len(CALL) // 2
    deltas: dict[int, list[Any]] = {0: [], 1: []}
    for text, end in ((CALL[:half], None), (CALL[half:], "stop")):
        for index in deltas:
            piece = output(text, end, index)
            reader.take(piece)
            deltas[index] += piece.outputs[0].deltas or []
    for each in deltas.values():
        assert [c.arguments for c in ParsedMessage.joined(each).tool_calls] == ['{"city": "Rome"}']


def test_a_parser_that_fails_is_that_requests_failure() -> None:
    def read(reader):
        yield from reader.take(1)
        raise ZeroDivisionError("no")

    made = ExpectedAnswer(guided=None, new_stream=lambda: MessageStream(tools=Stream(read)))
    with pytest.raises(RequestFailedError, match=r"parser of the model's answers fails .* no"):
        AnswerReader(made, in_pieces=False).take(output("a"))


def test_an_answers_fields_are_openais_and_have_reasoning_under_both_names() -> None:
    message = ParsedMessage(
        reasoning="a", content="b", tool_calls=(ToolCall(id="1", name="f", arguments="{}"),)
    )
    reasoning = {"reasoning": "a", "reasoning_content": "a"}
    call = MessageToolCall("1", CalledFunction("f", "{}"))
    fields = {"content": "b", "tool_calls": [call]}
    assert message_fields(message, with_reasoning=True) == reasoning | fields
    assert message_fields(message, with_reasoning=False) == fields
    assert message_fields(ParsedMessage(), with_reasoning=True) == {"content": ""}
    assert delta_fields(Delta(reasoning="a"), with_reasoning=True) == reasoning
    assert delta_fields(Delta(reasoning="a"), with_reasoning=False) == {}
