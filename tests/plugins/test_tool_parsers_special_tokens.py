from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_plugins.tool_parsers.deepseek_v3.parser import DeepseekV3Parser
from octavo_plugins.tool_parsers.deepseek_v31.parser import DeepseekV31Parser
from octavo_plugins.tool_parsers.ernie45.parser import Ernie45Parser
from octavo_plugins.tool_parsers.kimi_k2.parser import KimiK2Parser
from octavo_registry import ToolParser
from tool_parsers import (
    Call,
    Part,
    assert_cuts_do_not_matter,
    assert_form_is_read_back,
    assert_no_text_is_lost,
    assert_reads_back,
    damaged,
    messages,
    parse,
    quick,
    texts,
)

# -- all calls of a message as the chat templates write them -------------------------------------


def deepseek_v3(calls: Sequence[Call]) -> str:
    written = "\n".join(
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{call.name}\n"
        f"```json\n{json.dumps(call.arguments)}\n```<｜tool▁call▁end｜>"
        for call in calls
    )
    return f"<｜tool▁calls▁begin｜>{written}<｜tool▁calls▁end｜>"


def deepseek_v31(calls: Sequence[Call]) -> str:
    written = "".join(
        f"<｜tool▁call▁begin｜>{call.name}<｜tool▁sep｜>"
        f"{json.dumps(call.arguments, ensure_ascii=False)}<｜tool▁call▁end｜>"
        for call in calls
    )
    return f"<｜tool▁calls▁begin｜>{written}<｜tool▁calls▁end｜>"


def kimi_k2(calls: Sequence[Call]) -> str:
    written = "".join(
        f"<|tool_call_begin|>functions.{call.name}:{number}<|tool_call_argument_begin|>"
        f"{json.dumps(call.arguments)}<|tool_call_end|>"
        for number, call in enumerate(calls)
    )
    return f"<|tool_calls_section_begin|>{written}<|tool_calls_section_end|>"


def ernie45(calls: Sequence[Call]) -> str:
    return "\n".join(
        f'<tool_call>\n{{"name": "{call.name}", "arguments": {json.dumps(call.arguments)}}}\n'
        "</tool_call>"
        for call in calls
    )


@dataclass(frozen=True)
class Format:
    name: str
    parser: ToolParser
    render: Callable[[Sequence[Call]], str]

    @property
    def tags(self) -> tuple[str, ...]:
        return tuple(self.parser.markers)

    def text(self, parts: Sequence[Part]) -> str:
        return "".join(part if isinstance(part, str) else self.render([part]) for part in parts)


FORMATS = (
    Format("deepseek_v3", DeepseekV3Parser(), deepseek_v3),
    Format("deepseek_v31", DeepseekV31Parser(), deepseek_v31),
    Format("kimi_k2", KimiK2Parser(), kimi_k2),
    Format("ernie45", Ernie45Parser(), ernie45),
)
formats = pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)


def calls_of(parser: ToolParser, text: str) -> list[tuple[str, str]]:
    assert_cuts_do_not_matter(parser, text)
    return [(call.name, call.arguments) for call in parse(parser, text).tool_calls]


@formats
def test_what_the_chat_template_writes_is_read_back(format: Format) -> None:
    # ERNIE's template sets calls off by line breaks, which are not content.
    avoid = (*format.tags, "\n") if format.name == "ernie45" else format.tags

    @quick
    @given(messages(avoid=avoid))
    def check(parts: list[Part]) -> None:
        assert_reads_back(format.parser, format.text(parts), parts)

    check()


# In an array, so that a fault does not make a further member of the call of it: JSON calls leave
# those out.
LISTS = st.fixed_dictionaries({"list": st.lists(texts(tags=("<tool_call>",)), max_size=3)})


@formats
def test_faulty_text_is_read_evenly_and_none_is_lost(format: Format) -> None:
    arguments = LISTS if format.name == "ernie45" else None
    parts = messages(avoid=format.tags, arguments=arguments)

    @quick
    @given(damaged(parts.map(format.text), format.tags))
    def check(text: str) -> None:
        assert_cuts_do_not_matter(format.parser, text)
        assert_no_text_is_lost(format.parser, text)

    check()


@formats
def test_all_that_the_form_admits_is_read_back(format: Format) -> None:
    assert_form_is_read_back(format.parser)


@formats
def test_several_calls_between_one_pair_of_tags_are_read(format: Format) -> None:
    calls = [Call("f", {"x": 'a "b" <c>'}), Call("g", {}), Call("f", {"y": [1, {"z": None}]})]
    message = parse(format.parser, f"Before. {format.render(calls)}")
    assert message.content == "Before. "
    assert [Call(c.name, json.loads(c.arguments)) for c in message.tool_calls] == calls


@formats
def test_a_call_cut_short_keeps_what_came_of_its_arguments(format: Format) -> None:
    rendered = format.render([Call("f", {"city": "Beijing"})])
    message = parse(format.parser, rendered[: rendered.index("jing")])
    assert message.content is None
    assert [(call.name, call.arguments) for call in message.tool_calls] == [("f", '{"city": "Bei')]


@pytest.mark.parametrize(
    ("parser", "text", "calls", "content"),
    [
        (
            DeepseekV3Parser(),
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n"
            '```json\n{"city": "Tokyo", "unit": "celsius"}\n```<｜tool▁call▁end｜>\n'
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>search_hotels\n"
            '```json\n{\n  "check_in": "2025-01-15"\n}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
            [
                ("get_weather", '{"city": "Tokyo", "unit": "celsius"}'),
                ("search_hotels", '{\n  "check_in": "2025-01-15"\n}'),
            ],
            None,
        ),
        (
            DeepseekV31Parser(),
            'normal text<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>foo<｜tool▁sep｜>{"x":1}'
            '<｜tool▁call▁end｜><｜tool▁call▁begin｜>bar<｜tool▁sep｜>{"y":2}<｜tool▁call▁end｜>'
            "<｜tool▁calls▁end｜> some suffix text",
            [("foo", '{"x":1}'), ("bar", '{"y":2}')],
            "normal text some suffix text",
        ),
        (
            DeepseekV31Parser(),
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>"
            '"{\\"x\\": \\"\\\\n\\"}"<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
            [("f", '{"x": "\\n"}')],
            None,
        ),
        (
            DeepseekV3Parser(),
            '<｜tool▁call▁begin｜>f<｜tool▁sep｜>{"x": 1}<｜tool▁call▁end｜>\n\nThat was V3.1.',
            [("f", '{"x": 1}')],
            "\n\nThat was V3.1.",
        ),
        (
            DeepseekV31Parser(),
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n"
            "```json\n{}\n```<｜tool▁call▁end｜>As V3.",
            [("f", "{}")],
            "As V3.",
        ),
        (
            DeepseekV31Parser(),
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>no JSON at all"
            '<｜tool▁call▁end｜><｜tool▁call▁begin｜>g<｜tool▁sep｜>{"x": <b>}<｜tool▁call▁end｜>',
            [("g", '{"x": <b>}')],
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>no JSON at all"
            "<｜tool▁call▁end｜>",
        ),
        (
            KimiK2Parser(),
            "Help. <|tool_calls_section_begin|><|tool_call_begin|>functions.bad:0 "
            '<|tool_call_argument_begin|>{"city": "Beijing"<|tool_call_end|>'
            '<|tool_call_begin|>good:1 <|tool_call_argument_begin|> {"city": "Shanghai"} '
            "<|tool_call_end|><|tool_calls_section_end|>",
            [("bad", '{"city": "Beijing"'), ("good", '{"city": "Shanghai"}')],
            "Help. ",
        ),
        (
            KimiK2Parser(),
            "<|tool_calls_section_begin|>\n<|tool_call_begin|>functions.f:7\n"
            "<|tool_call_argument_begin|><|tool_call_end|><|tool_calls_section_end|>",
            [("f", "{}")],
            None,
        ),
        (
            Ernie45Parser(),
            "I need two tools.\n</think>\n\n\n<tool_call>\n"
            '{"name": "f", "arguments": {"location": "Beijing"}}\n</tool_call>\n'
            '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>\n',
            [("f", '{"location": "Beijing"}'), ("g", "{}")],
            "I need two tools.\n</think>",
        ),
    ],
)
def test_texts_of_the_models(
    parser: ToolParser, text: str, calls: list[tuple[str, str]], content: str | None
) -> None:
    assert calls_of(parser, text) == calls
    assert parse(parser, text).content == content


def test_kimi_k2_gives_calls_the_ids_that_the_model_wrote() -> None:
    text = kimi_k2([Call("get_weather", {}), Call("a:b", {})])
    message = parse(KimiK2Parser(), text)
    assert [(call.id, call.name) for call in message.tool_calls] == [
        ("functions.get_weather:0", "get_weather"),
        ("functions.a:b:1", "a:b"),
    ]


@pytest.mark.parametrize(
    ("parser", "text"),
    [
        (DeepseekV31Parser(), "Let me look.<｜tool▁calls▁begin｜>get_weather"),
        (DeepseekV31Parser(), '<｜tool▁calls▁begin｜>f<｜tool▁sep｜>{"x":1}<｜tool▁calls▁end｜>'),
        (DeepseekV3Parser(), "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>"),
        (
            KimiK2Parser(),
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.f.0 "
            "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        ),
        (KimiK2Parser(), "Reasoning. <|tool_calls_section_begin|><|tool_calls_section_end|>"),
    ],
)
def test_what_turns_out_to_be_no_call_is_content_with_its_tags(
    parser: ToolParser, text: str
) -> None:
    assert_cuts_do_not_matter(parser, text)
    message: Any = parse(parser, text)
    assert (message.content, message.tool_calls) == (text, ())
