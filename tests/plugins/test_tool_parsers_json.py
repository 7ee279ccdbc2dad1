from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_plugins.tool_parsers.granite.parser import GraniteParser
from octavo_plugins.tool_parsers.granite_20b_fc.parser import Granite20bFcParser
from octavo_plugins.tool_parsers.hermes.parser import HermesParser
from octavo_plugins.tool_parsers.hunyuan_a13b.parser import HunyuanA13bParser
from octavo_plugins.tool_parsers.internlm.parser import InternlmParser
from octavo_plugins.tool_parsers.jamba.parser import JambaParser
from octavo_plugins.tool_parsers.llama3_json.parser import Llama3JsonParser
from octavo_plugins.tool_parsers.longcat.parser import LongcatParser
from octavo_plugins.tool_parsers.mistral.parser import MistralParser
from octavo_plugins.tool_parsers.phi4_mini.parser import Phi4MiniParser
from octavo_plugins.tool_parsers.xlam.parser import XlamParser
from octavo_registry import ToolCall, ToolParser
from tool_parsers import (
    TOOLS,
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

ARRAY_MISTRAL = MistralParser(SimpleNamespace(chat_template="[TOOL_CALLS] ["))


@dataclass(frozen=True)
class Format:
    """How a template writes calls: one by one among content, or all in one array at the end."""

    parser: ToolParser
    avoid: Sequence[str]
    each: str = "{}"
    between: str = ""
    around: str = "{}"
    arguments: str = "arguments"
    in_array: bool = False
    content: bool = True

    def parts(
        self, arguments: st.SearchStrategy[dict[str, object]] | None = None
    ) -> st.SearchStrategy[list[Part]]:
        return messages(
            avoid=self.avoid,
            arguments=arguments,
            content_before=self.content,
            content_after=not self.in_array and self.content,
            least_calls=0 if self.content else 1,
        )

    def write(self, call: Call) -> str:
        body = json.dumps(call.arguments, ensure_ascii=len(call.name) % 2 == 0)
        return self.each.replace("NAME", call.name).replace(
            "{}", f'{{"name": "{call.name}", "{self.arguments}": {body}}}'
        )

    def render(self, parts: Sequence[Part]) -> str:
        content = [part for part in parts if isinstance(part, str)]
        calls = [self.write(part) for part in parts if isinstance(part, Call)]
        if self.in_array and calls:
            return "".join(content) + self.around.replace("{}", self.between.join(calls))
        return "".join(part if isinstance(part, str) else self.write(part) for part in parts)


def tagged(parser: ToolParser, opening: str, closing: str, **options: str) -> Format:
    return Format(parser, [opening, closing], f"{opening}\n{{}}\n{closing}", **options)


def array(parser: ToolParser, opening: str, closing: str, **options: object) -> Format:
    return Format(
        parser,
        [opening.strip("[ "), closing.strip("] ")] if closing != "]" else [opening.strip("[ ")],
        between=",\n",
        around=f"{opening}{{}}{closing}",
        in_array=True,
        **options,
    )


FORMATS = {
    "hermes": tagged(HermesParser(), "<tool_call>", "</tool_call>"),
    "longcat": tagged(LongcatParser(), "<longcat_tool_call>", "</longcat_tool_call>"),
    "internlm": tagged(
        InternlmParser(),
        "<|action_start|><|plugin|>",
        "<|action_end|>",
        arguments="parameters",
    ),
    "granite-20b-fc": Format(Granite20bFcParser(), ["<function_call>"], "<function_call> {}"),
    "llama3_json": Format(
        Llama3JsonParser(), ["{", ";"], "<|python_tag|>{}", arguments="parameters"
    ),
    "jamba": array(JambaParser(), "<tool_calls>[", "]</tool_calls>"),
    "hunyuan_a13b": array(HunyuanA13bParser(), "<tool_calls>[", "]</tool_calls>"),
    "granite": array(GraniteParser(), "<|tool_call|>[", "]"),
    "granite, bare": array(GraniteParser(), "[", "]", content=False),
    "phi4_mini_json": array(Phi4MiniParser(), "functools[", "]"),
    "mistral, array": array(ARRAY_MISTRAL, "[TOOL_CALLS] [", "]"),
    "xlam": array(XlamParser(), "[", "]", content=False),
    "xlam, fenced": array(XlamParser(), "```json\n[", "]\n```", content=False),
}
named = pytest.mark.parametrize("format", FORMATS.values(), ids=FORMATS.keys())


@named
def test_what_the_template_writes_is_read_back(format: Format) -> None:
    @quick
    @given(format.parts())
    def check(parts: list[Part]) -> None:
        assert_reads_back(format.parser, format.render(parts), parts)

    check()


# In an array, so that a fault does not make a further member of the call of it: those are left out.
LISTS = st.fixed_dictionaries({"list": st.lists(texts(tags=("<tool_call>",)), max_size=3)})


@named
def test_faulty_text_is_read_evenly_and_none_is_lost(format: Format) -> None:
    @quick
    @given(damaged(format.parts(LISTS).map(format.render), format.avoid))
    def check(text: str) -> None:
        assert_cuts_do_not_matter(format.parser, text)
        assert_no_text_is_lost(format.parser, text)

    check()


@named
def test_all_that_the_form_admits_is_read_back(format: Format) -> None:
    assert_form_is_read_back(format.parser)


@pytest.mark.parametrize(
    ("parser", "text", "content", "calls"),
    [
        (HermesParser(), "<tool_call>oops</tool_call>", "<tool_call>oops</tool_call>", []),
        (HermesParser(), '<tool_call>{"name": "f"}</tool_call>', None, [("f", "{}")]),
        (
            HermesParser(),
            '<tool_call>\n{"name": "f", "arguments": {"a": 1}\n</tool_call> Done.',
            " Done.",
            [("f", '{"a": 1}')],
        ),
        (
            HermesParser(),
            '<tool_call>\n{"name": "f", "arguments": {"a": 1}}}\n</tool_call>',
            "}\n",
            [("f", '{"a": 1}')],
        ),
        (
            HermesParser(),
            '<tool_call>{"name": "f", "arguments": {"a": 1</tool_call>',
            None,
            [("f", '{"a": 1')],
        ),
        (
            HermesParser(),
            '<tool_call>{"name": "f", "arguments": {}, "id": 7}</tool_call>',
            None,
            [("f", "{}")],
        ),
        (
            HermesParser(),
            '<tool_call>{"name": "f", "arguments": "{\\"a\\": \\"\\u00e9\\"}"}</tool_call>',
            None,
            [("f", '{"a": "é"}')],
        ),
        (HermesParser(), '<tool_call>{"name": "f", "arg', '<tool_call>{"name": "f", "arg', []),
        (
            HermesParser(),
            '<tool_call>{"name": "f", "arguments": ',
            '<tool_call>{"name": "f", "arguments": ',
            [],
        ),
        (HermesParser(), "  \n", "  \n", []),
        (
            Llama3JsonParser(),
            '<|python_tag|>{"type": "function", "name": "f", "parameters": {"a": "{"}}; '
            '{"name": "g", "parameters": null}',
            None,
            [("f", '{"a": "{"}'), ("g", "{}")],
        ),
        (
            Llama3JsonParser(),
            'Here: {"name": "f", "arguments": {}} and {"name": "Ada"}.',
            'Here:  and {"name": "Ada"}.',
            [("f", "{}")],
        ),
        (
            MistralParser(),
            'Hi[TOOL_CALLS] [{"name": "f", "arguments": {"a": []}, "id": "aB3dE6gH9"}]',
            "Hi",
            [("f", '{"a": []}')],
        ),
        (
            MistralParser(),
            '[TOOL_CALLS]f[ARGS]{"a": "[TOOL_CALLS]"}[TOOL_CALLS]g{}',
            None,
            [("f", '{"a": "[TOOL_CALLS]"}'), ("g", "{}")],
        ),
        (MistralParser(), "[TOOL_CALLS]f[ARGS]oops", "[TOOL_CALLS]f[ARGS]oops", []),
        (
            HunyuanA13bParser(),
            '<think><tool_calls>[{"name": "f", "arguments": {}}]</tool_calls></think>'
            '<tool_calls>[{"name": "g", "arguments": {}}]</tool_calls>',
            '<think><tool_calls>[{"name": "f", "arguments": {}}]</tool_calls></think>',
            [("g", "{}")],
        ),
        (
            XlamParser(),
            '<think>Hm.</think>\n[{"name": "f", "arguments": {}}]',
            "<think>Hm.</think>",
            [("f", "{}")],
        ),
        (XlamParser(), "```json\n[1, 2]\n```", "```json\n[1, 2]\n```", []),
        (GraniteParser(), "[1] and [2]", "[1] and [2]", []),
        (
            Phi4MiniParser(),
            'import functools\n<|tool_call|>[{"name": "f", "arguments": {}}]<|/tool_call|>',
            "import functools\n",
            [("f", "{}")],
        ),
    ],
)
def test_known_texts_give_these_messages(parser, text, content, calls) -> None:
    message = parse(parser, text)
    assert message.content == content
    assert [(call.name, call.arguments) for call in message.tool_calls] == calls
    assert_cuts_do_not_matter(parser, text)


def test_mistral_keeps_the_id_that_the_model_wrote() -> None:
    message = parse(MistralParser(), '[TOOL_CALLS]f[CALL_ID]aB3dE6gH9[ARGS]{"a": 1}')
    assert message.tool_calls == (ToolCall(name="f", arguments='{"a": 1}', id="aB3dE6gH9"),)


def test_mistral_demands_the_form_of_the_models_own_template() -> None:
    for parser in (ARRAY_MISTRAL, MistralParser()):
        assert_form_is_read_back(parser)
    assert str(ARRAY_MISTRAL.form(TOOLS, parallel=True)) != str(
        MistralParser().form(TOOLS, parallel=True)
    )
