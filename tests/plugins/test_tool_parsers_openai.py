"""Harmony, the format of gpt-oss: the tool parser, the reasoning parser, and both in a row."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

import pytest
from hypothesis import given

from octavo.testing.structure_texts import random_text
from octavo.tools import MessageStream, get_reasoning_parser, get_tool_parser, parsed
from octavo_plugins.tool_parsers.openai.harmony import MARKERS
from octavo_plugins.tool_parsers.openai.parser import OpenAIReasoningParser, OpenAIToolParser
from octavo_registry import ParsedMessage, ToolCall
from octavo_registry.structure import Chain, Literal
from tool_parsers import (
    TOOLS,
    Call,
    Part,
    assert_cuts_do_not_matter,
    assert_form_is_read_back,
    assert_no_text_is_lost,
    damaged,
    messages,
    parse,
    quick,
)

TOOL_PARSER, REASONING_PARSER = OpenAIToolParser(), OpenAIReasoningParser()
USER = "<|start|>user<|message|>Hi<|end|>"
PROMPT = f"{USER}<|start|>assistant"
ANALYSIS, FINAL = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
NAMELESS = "<|channel|>commentary to=functions. json<|message|>{}"


def rendered(parts: Sequence[Part]) -> str:
    """Behind ``<|start|>assistant`` comes analysis, then each part as a message."""
    texts = [f"{ANALYSIS}I think.<|end|>"]
    for part in parts:
        if isinstance(part, str):
            texts.append(f"<|channel|>commentary<|message|>{part}<|end|>")
        else:
            texts.append(
                f"<|channel|>commentary to=functions.{part.name} <|constrain|>json<|message|>"
                f"{json.dumps(part.arguments)}<|call|>"
            )
    return "<|start|>assistant".join(texts)


def in_a_row(*pieces: str) -> ParsedMessage:
    return parsed(
        MessageStream(reasoning=REASONING_PARSER.stream(), tools=TOOL_PARSER.stream()), *pieces
    )


MESSAGES = messages(avoid=("<|",), tags=MARKERS)


@quick
@given(MESSAGES)
def test_reads_back_what_the_template_writes(parts) -> None:
    text = rendered(parts)
    message = parse(TOOL_PARSER, text)
    calls = [(call.name, json.loads(call.arguments)) for call in message.tool_calls]
    assert calls == [(part.name, part.arguments) for part in parts if isinstance(part, Call)]
    spoken = [part for part in parts if isinstance(part, str)]
    assert (message.content or "").strip() == "\n".join(spoken).strip()
    assert message.reasoning == "I think."
    assert in_a_row(text) == in_a_row(*text) == message
    assert_cuts_do_not_matter(TOOL_PARSER, text)
    assert_cuts_do_not_matter(REASONING_PARSER, text)


@quick
@given(damaged(MESSAGES.map(rendered), MARKERS))
def test_damaged_texts_lose_nothing_and_cuts_do_not_matter(text) -> None:
    for parser in (TOOL_PARSER, REASONING_PARSER):
        assert_no_text_is_lost(parser, text)
        assert_cuts_do_not_matter(parser, text)
    assert in_a_row(text) == in_a_row(*text)


def test_calls_of_the_form_are_read_back_alone_and_behind_reasoning() -> None:
    assert_form_is_read_back(TOOL_PARSER, examples=15)
    form = TOOL_PARSER.form(TOOLS, parallel=True)
    before = REASONING_PARSER.before_answer(PROMPT)
    assert before is not None
    texts = [random_text(Chain((before, form.calls)), random.Random(seed)) for seed in range(15)]
    assert [len(in_a_row(text).tool_calls) for text in texts] == [1] * 15
    assert not all("final" in text for text in texts)


def test_an_answer_behind_what_may_come_before_it_is_the_content() -> None:
    for prompt in (PROMPT, f"{PROMPT}{ANALYSIS}Let me"):
        before = REASONING_PARSER.before_answer(prompt)
        assert before is not None
        for seed in range(15):
            text = random_text(Chain((before, Literal('{"a": 1}'))), random.Random(seed))
            message = parsed(REASONING_PARSER.stream(prompt=prompt), text)
            assert message.content == '{"a": 1}'
    assert REASONING_PARSER.before_answer(f"{PROMPT}{FINAL}") is None


CALL = ToolCall(name="get_weather", arguments='{"city": "SF"}')


@pytest.mark.parametrize(
    "header",
    [
        "<|channel|>commentary to=functions.get_weather <|constrain|>json",
        "<|channel|>commentary to=functions.get_weather<|constrain|>json",
        "<|channel|>commentary to=functions.get_weather json",
        "<|channel|>commentary to=get_weather",
        "<|channel|>analysis to=functions.get_weather",
        "<|start|>assistant to=functions.get_weather<|channel|>commentary json",
        " to=functions.get_weather<|channel|>commentary json",
        " to=functions.get_weather<|channel|>commentary <|constrain|>json",
        "to=functions.get_weather",
    ],
)
@pytest.mark.parametrize("end", ["<|call|>", "<|end|>", "\n<|call|>", ""])
def test_recipients_stand_anywhere_in_the_header(header, end) -> None:
    text = f"{header}<|message|>{CALL.arguments}{end}"
    assert parse(TOOL_PARSER, text) == ParsedMessage(tool_calls=(CALL,))
    assert in_a_row(text) == in_a_row(*text) == ParsedMessage(tool_calls=(CALL,))
    assert_cuts_do_not_matter(TOOL_PARSER, text)


def test_text_that_looks_like_a_header_is_not_held_for_long() -> None:
    deltas = TOOL_PARSER.stream().feed(" to=all of you: ")
    assert "".join(delta.content for delta in deltas) == " to=all of you: "


def test_preamble_call_and_answer_come_apart() -> None:
    text = (
        f"{ANALYSIS}Two steps.<|end|><|start|>assistant<|channel|>commentary<|message|>Plan:<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.get_weather<|constrain|>json"
        f"<|message|>{CALL.arguments}<|call|><|start|>assistant{ANALYSIS}Good.<|end|>"
        f"<|start|>assistant{FINAL}Sunny.<|return|>"
    )
    expected = ParsedMessage(
        reasoning="Two steps.\nGood.", content="Plan:\nSunny.", tool_calls=(CALL,)
    )
    assert parse(TOOL_PARSER, text) == expected
    assert in_a_row(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{ANALYSIS}never closed", ParsedMessage(reasoning="never closed")),
        (f"{ANALYSIS}a{FINAL}b", ParsedMessage(reasoning="a", content="b")),
        (f"{ANALYSIS}<|end|><|start|>assistant{FINAL}b", ParsedMessage(content="b")),
        (f"{FINAL}a <|end|> b", ParsedMessage(content="a  b")),
        ("<|channel|>other<|message|>a", ParsedMessage(content="<|channel|>other<|message|>a")),
        ("<|channel|>final <|constrain|>JSON<|message|>{}", ParsedMessage(content="{}")),
        ("<|start|>assistant{}", ParsedMessage(content="{}")),
        ("<|start|>user<|message|>a", ParsedMessage(content="<|start|>user<|message|>a")),
        ("<|message|>a", ParsedMessage(content="<|message|>a")),
        ("<|channel|>analysis to=python<|message|>1+1<|call|>", ParsedMessage(reasoning="1+1")),
        (NAMELESS, ParsedMessage(content=NAMELESS)),
        ("plain", ParsedMessage(content="plain")),
        (" to=all of you", ParsedMessage(content=" to=all of you")),
        ("<|channel|>fin", ParsedMessage(content="<|channel|>fin")),
        ("<|start|>assistant<|end|>a", ParsedMessage(content="<|start|>assistant<|end|>a")),
    ],
)
def test_odd_messages(text, expected) -> None:
    assert parse(TOOL_PARSER, text) == expected
    assert parse(REASONING_PARSER, text) == expected
    assert in_a_row(text) == in_a_row(*text) == expected


@pytest.mark.parametrize(
    ("rest", "arguments"),
    [("<|call|>", "{}"), ("", "{}"), ('{"a', '{"a'), ('{"a": <b>}<|call|>', '{"a": <b>}')],
)
def test_arguments_that_lack_something_stay_as_they_are(rest, arguments) -> None:
    [call] = parse(TOOL_PARSER, f"<|channel|>commentary to=functions.f<|message|>{rest}").tool_calls
    assert call.arguments == arguments


def test_a_message_that_is_no_object_of_arguments_is_content_and_the_next_is_read() -> None:
    header = "<|channel|>commentary to=functions.f<|message|>"
    text = f"{header}a = 1<|call|><|start|>assistant{FINAL}Done.<|return|>"
    expected = ParsedMessage(content=f"{header}a = 1Done.")
    assert parse(TOOL_PARSER, text) == in_a_row(text) == in_a_row(*text) == expected
    assert_cuts_do_not_matter(TOOL_PARSER, text)


def test_a_prompt_may_have_begun_the_message() -> None:
    text = "more<|end|><|start|>assistant<|channel|>final<|message|>Hi"
    for prompt, reasoning, content in [
        (f"{PROMPT}{ANALYSIS}one", "more", "Hi"),
        (f"{PROMPT}{FINAL}one", None, "more\nHi"),
        (f"{PROMPT}{FINAL}old<|end|>{PROMPT}", None, "more\nHi"),
    ]:
        message = parse(REASONING_PARSER, text, prompt=prompt)
        assert (message.reasoning, message.content) == (reasoning, content)
        assert_cuts_do_not_matter(REASONING_PARSER, text, prompt=prompt)


def test_names_are_registered() -> None:
    assert get_tool_parser("openai").parse(FINAL + "Hi").content == "Hi"
    for name in ("openai", "openai_gptoss"):
        assert get_reasoning_parser(name).parse(ANALYSIS + "Hi").reasoning == "Hi"
