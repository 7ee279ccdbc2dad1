"""Reasoning between tags, in all formats but harmony."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.testing.structure_texts import random_text
from octavo.tools import MessageStream, get_reasoning_parser, get_tool_parser, parsed
from octavo_plugins.reasoning_parsers.tagged.parser import (
    DeepSeekR1Parser,
    DeepSeekV3Parser,
    Gemma4Parser,
    Glm45Parser,
    GraniteParser,
    KimiK2Parser,
    MiniMaxM2Parser,
    MistralParser,
    Qwen3Parser,
    TaggedReasoningParser,
)
from octavo_registry.structure import Chain, Literal, TextUntil
from tool_parsers import (
    assert_cuts_do_not_matter,
    assert_no_text_is_lost,
    damaged,
    parse,
    quick,
    texts,
)

DEEPSEEK, QWEN, GLM = (
    "<｜User｜>Hi<｜Assistant｜>",
    "<|im_start|>assistant\n",
    "<|user|>Hi<|assistant|>",
)
KIMI, MINIMAX = "<|im_assistant|>assistant<|im_middle|>", "[e~[\n]~b]ai\n"
GRANITE = (
    "Write your thoughts after 'Here is my thought process:' and write your response after "
    "'Here is my response:' for each user query.<|start_of_role|>assistant<|end_of_role|>"
)

# Each with a prompt that has it reason, as its template writes it, and one that has it not.
PROMPTS: list[tuple[TaggedReasoningParser, str, str]] = [
    (DeepSeekR1Parser(), f"{DEEPSEEK}<think>\n", f"{DEEPSEEK}<think>\n\n</think>\n\n"),
    (DeepSeekV3Parser(), f"{DEEPSEEK}<think>", f"{DEEPSEEK}</think>"),
    (Qwen3Parser(), f"{QWEN}<think>\n", f"{QWEN}<think>\n\n</think>\n\n"),
    (Glm45Parser(), GLM, f"{GLM}\n<think></think>"),
    (KimiK2Parser(), KIMI, f"{KIMI}<think></think>"),
    (MiniMaxM2Parser(), f"{MINIMAX}<think>\n", f"{MINIMAX}<think></think>"),
    (MistralParser(), "[INST]Hi[/INST]", "[INST]Hi[/INST][THINK]x[/THINK]"),
    (Gemma4Parser(), "<|turn>model\n", "<|turn>model\n<|channel>thought\n<channel|>"),
    (GraniteParser(), GRANITE, "<|start_of_role|>assistant<|end_of_role|>"),
]
NAMES = (
    *("deepseek_r1", "deepseek_v3", "gemma4", "glm45", "granite"),
    *("kimi_k2", "minimax_m2", "mistral", "qwen3"),
)
PARSERS = [parser for parser, _, _ in PROMPTS]


def name_of(value: object) -> str:
    return type(value).__name__ if isinstance(value, TaggedReasoningParser) else ""


all_parsers = pytest.mark.parametrize("parser", PARSERS, ids=name_of)
all_prompts = pytest.mark.parametrize(("parser", "thinking", "silent"), PROMPTS, ids=name_of)


def reasoning_and_content(parser, text, prompt=None):
    message = parse(parser, text, prompt=prompt)
    return message.reasoning, message.content


def plain(parser: TaggedReasoningParser) -> st.SearchStrategy[str]:
    tags = (*parser.opens, *parser.closes, *parser.calls)
    return texts(avoid=tags).map(lambda text: f"word {text} word")


@all_parsers
@quick
@given(data=st.data())
def test_reasoning_and_content_come_apart(parser, data) -> None:
    reasoning, content = data.draw(plain(parser)), data.draw(plain(parser))
    text = f"{parser.opens[0]}{reasoning}{parser.closes[0]}{content}"
    assert reasoning_and_content(parser, text) == (reasoning, content)
    assert_cuts_do_not_matter(parser, text)


@all_prompts
@quick
@given(data=st.data())
def test_damaged_texts_lose_nothing_and_cuts_do_not_matter(parser, thinking, silent, data) -> None:
    tags = (*parser.opens, *parser.closes, *parser.calls)
    whole = st.lists(st.one_of(plain(parser), st.sampled_from(tags)), max_size=5).map("".join)
    text = data.draw(damaged(whole, tags))
    for prompt in (None, thinking, silent):
        assert_no_text_is_lost(parser, text, prompt=prompt)
        assert_cuts_do_not_matter(parser, text, prompt=prompt)


@all_prompts
def test_the_prompt_tells_whether_the_text_begins_inside_the_reasoning(
    parser, thinking, silent
) -> None:
    opening = "" if thinking.rstrip().endswith(parser.opens) else parser.opens[0]
    text = f"{opening}Why?{parser.closes[0]}\n\nSo."
    assert reasoning_and_content(parser, text, thinking) == ("Why?", "\n\nSo.")
    assert reasoning_and_content(parser, "Just so.", silent) == (None, "Just so.")
    assert reasoning_and_content(parser, f"{opening}Why", thinking) == ("Why", None)


@all_prompts
def test_a_guide_begins_behind_the_reasoning(parser, thinking, silent) -> None:
    before = parser.before_answer(thinking)
    assert before is not None
    assert parser.before_answer(silent) is None
    for seed in range(10):
        text = random_text(Chain((before, Literal("[1]"))), random.Random(seed))
        assert parse(parser, text, prompt=thinking).content == "[1]"


def test_what_a_prompt_has_opened_must_come_first_and_what_a_model_opens_may() -> None:
    rest = TextUntil(("</think>",))
    assert Qwen3Parser().before_answer(f"{QWEN}<think>\n") == rest
    assert Qwen3Parser().before_answer(f"{QWEN}<think>\nThe user asks") == rest
    choices = {random_text(Qwen3Parser().before_answer(QWEN), random.Random(n)) for n in range(20)}
    assert "" in choices
    assert any(text.lstrip().startswith("<think>") for text in choices)


def test_tags_of_earlier_turns_and_of_users_say_nothing() -> None:
    parser = Qwen3Parser()
    for prompt in (
        f"{QWEN}<think>\nold\n</think>\n\nHi<|im_end|>\n{QWEN}",
        f"<|im_start|>user\nWhat is <think>?<|im_end|>\n{QWEN}",
    ):
        assert reasoning_and_content(parser, "Hi", prompt) == (None, "Hi")
        assert reasoning_and_content(parser, "<think>a</think>Hi", prompt) == ("a", "Hi")
    called = "[INST]Hi[/INST][THINK]x[/THINK][TOOL_CALLS]f[ARGS]{}"
    with_result = f"{called}[TOOL_RESULTS]1[/TOOL_RESULTS]"
    assert MistralParser().before_answer(with_result) is not None


@pytest.mark.parametrize("name", ["deepseek_r1", "qwen3", "glm45", "kimi_k2", "minimax_m2"])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>a</think>b", ("a", "b")),
        ("a</think>b", ("a", "b")),
        ("a</think>", ("a", None)),
        ("<think>a", ("a", None)),
        ("a", ("a", None)),
        ("", (None, None)),
        ("</think>b", (None, "b")),
        ("<think></think>b", (None, "b")),
        ("<think>\n\n</think>\n\nb", ("\n\n", "\n\nb")),
        ("\n<think>a\nb</think>\n", ("a\nb", "\n")),
        ("a</think>\n</think>b", ("a", "b")),
        ("a</think>\n<think>b</think>c", ("ab", "c")),
        ("a<think>b</think>c", ("a<think>b", "c")),
        ("a</think>b <think> c", ("a", "b <think> c")),
    ],
)
def test_texts_without_a_prompt_begin_inside_the_reasoning(name, text, expected) -> None:
    parser = get_reasoning_parser(name).parser
    assert reasoning_and_content(parser, text) == expected
    assert_cuts_do_not_matter(parser, text)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("deepseek_r1", "a</think>b</think>c", ("a", "b</think>c")),
        ("qwen3", "a</think>b</think>c", ("a", "bc")),
        ("minimax_m2", "a</think>b</think>c", ("a", "bc")),
        ("deepseek_v3", "Just text", (None, "Just text")),
        ("deepseek_v3", "<think>a</think>b", ("a", "b")),
        ("mistral", "Just text", (None, "Just text")),
        ("mistral", "[THINK]a[/THINK]b", ("a", "b")),
        ("mistral", "[THINK]a", ("a", None)),
        ("mistral", "one [THINK]a[/THINK]two", ("a", "one two")),
        ("mistral", "one[/THINK] two", (None, "one two")),
        ("gemma4", "<|channel>thought\na\n<channel|>b", ("a\n", "b")),
        ("gemma4", "Just text", (None, "Just text")),
        ("granite", "Here is my thought process:a\nHere is my response:b", ("a\n", "b")),
        ("granite", "Here's my thought process:aHere's my response:b", ("a", "b")),
        ("granite", "Here is my thought process: foo Here is Here", (" foo Here is Here", None)),
        ("granite", "Here is my thought", (None, "Here is my thought")),
        ("granite", "I say: Here is my response:b", (None, "I say: Here is my response:b")),
    ],
)
def test_what_formats_make_of_their_tags_without_a_prompt(name, text, expected) -> None:
    parser = get_reasoning_parser(name).parser
    assert reasoning_and_content(parser, text) == expected
    assert_cuts_do_not_matter(parser, text)


XML = "<tool_call>\n<function=f>\n<parameter=a>\n</think>\n</parameter>\n</function>\n</tool_call>"


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("qwen3", f"I look.\n{XML}", ("I look.\n", XML)),
        ("qwen3", f"<think>I look.\n{XML}", ("I look.\n", XML)),
        ("qwen3", f"I look.</think>\n{XML}", ("I look.", f"\n{XML}")),
        ("qwen3", 'I<tool_call>{"name": "f"}', ("I", '<tool_call>{"name": "f"}')),
        ("qwen3", "Use <tool_call> tags.</think>b", ("Use <tool_call> tags.", "b")),
        ("glm45", "I<tool_call>f\n</tool_call>", ("I", "<tool_call>f\n</tool_call>")),
        ("kimi_k2", "I<|tool_calls_section_begin|>x", ("I", "<|tool_calls_section_begin|>x")),
        ("minimax_m2", "I<minimax:tool_call>x", ("I", "<minimax:tool_call>x")),
        ("deepseek_r1", "I<｜tool▁calls▁begin｜>x", ("I", "<｜tool▁calls▁begin｜>x")),
        ("gemma4", "<|channel>thought\nI<|tool_call>call:f{}", ("I", "<|tool_call>call:f{}")),
        ("mistral", "[THINK]I[TOOL_CALLS]f[ARGS]{}", ("I", "[TOOL_CALLS]f[ARGS]{}")),
    ],
)
def test_a_call_ends_reasoning_and_keeps_its_text(name, text, expected) -> None:
    parser = get_reasoning_parser(name).parser
    assert reasoning_and_content(parser, text) == expected
    assert_cuts_do_not_matter(parser, text)


@pytest.mark.parametrize("cut", [1, 3, 1000])
def test_calls_inside_and_behind_reasoning_reach_the_tool_parser(cut) -> None:
    call = '<tool_call>\n{"name": "f", "arguments": {"a": "</think>"}}\n</tool_call>'
    for text in (f"<think>I call.{call}", f"<think>I call.</think>\n\n{call}"):
        reasoning = get_reasoning_parser("qwen3").stream()
        stream = MessageStream(reasoning=reasoning, tools=get_tool_parser("hermes").stream())
        message = parsed(stream, *(text[at : at + cut] for at in range(0, len(text), cut)))
        assert (message.reasoning, message.content) == ("I call.", None)
        assert message.tool_calls[0].arguments == '{"a": "</think>"}'


def test_names_are_registered() -> None:
    for name in NAMES:
        assert get_reasoning_parser(name).parse("").content is None
