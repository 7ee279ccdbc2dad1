"""``<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from octavo.tools import Reader, Reading, Stream
from octavo.tools.forms import Function, call_form, functions
from octavo.tools.parameter_forms import parameters_form
from octavo.tools.parameters import ArgumentsWriter, ToolTypes, ValueEnd
from octavo_plugins.tool_parsers.tagged_calls import CallTags, tagged_calls
from octavo_registry import CallForm, ParserStream, ToolDefinition
from octavo_registry.structure import Chain, Literal, Structure

OPEN = "<tool_call>"
CLOSE = "</tool_call>"
KEY = "<arg_key>"
KEY_END = "</arg_key>"
VALUE = "<arg_value>"
VALUE_END = "</arg_value>"
SEPARATOR = "<tool_sep>"


class Glm45Parser:
    """The tool calls of GLM 4.5 and 4.6, whose tags stand on lines of their own."""

    samples: Sequence[str] = (
        f"{OPEN}get_weather\n{KEY}city{KEY_END}\n{VALUE}Beijing{VALUE_END}\n"
        f"{KEY}days{KEY_END}\n{VALUE}3{VALUE_END}\n{CLOSE}",
        f'I\'ll look at both.\n{OPEN}search\n{KEY}query{KEY_END}\n{VALUE}  a < b,\n"c"{VALUE_END}\n'
        f'{KEY}options{KEY_END}\n{VALUE}{{"safe": [true, null]}}{VALUE_END}\n{CLOSE}\n'
        f"{OPEN}now\n{CLOSE}",
        f"{OPEN}now{CLOSE}{OPEN}search{KEY}query{KEY_END}{VALUE}文字{VALUE_END}{CLOSE} Done.",
    )
    markers: Sequence[str] = (OPEN, CLOSE, KEY, KEY_END, VALUE, VALUE_END)
    line_end: ClassVar = "\n"
    """What the chat template writes behind names and tags."""
    tags: ClassVar[CallTags] = CallTags(call=OPEN)
    after_name: ClassVar = ""
    before_all: ClassVar = ""
    after_all: ClassVar = ""

    def __init__(self, tokenizer: object = None) -> None:
        """No tokenizer is needed."""

    def form(self, tools: Sequence[ToolDefinition], *, parallel: bool) -> CallForm | None:
        """Return the form of the models' chat template."""
        calls = [self._call_form(function) for function in functions(tools)]
        written = [call for call in calls if call is not None]
        if len(written) < len(calls):
            return None
        return call_form(
            written,
            before_all=self.before_all,
            before_each=OPEN,
            after_each=CLOSE,
            after_all=self.after_all,
            between=self.line_end,
            parallel=parallel,
            triggers=((*self.tags.opening, self.tags.call)[0],),
        )

    def stream(self, tools: Sequence[ToolDefinition] | None = None) -> ParserStream:
        """Begin a message."""
        types = ToolTypes(tools)
        return Stream(lambda reader: tagged_calls(reader, self.tags, lambda: _call(reader, types)))

    def _call_form(self, function: Function) -> Structure | None:
        parameters = parameters_form(
            function,
            before=lambda key: f"{KEY}{key}{KEY_END}{self.line_end}{VALUE}",
            end=VALUE_END,
            after=self.line_end,
        )
        if parameters is None:
            return None
        return Chain((Literal(f"{function.name}{self.after_name}{self.line_end}"), parameters))


class Glm47Parser(Glm45Parser):
    """The tool calls of GLM 4.7 and 5, without line breaks; either parser reads both."""

    line_end = ""


class PoolsideV1Parser(Glm45Parser):
    """The tool calls of Laguna, which are written as those of GLM 4.5."""


class HyV3Parser(Glm45Parser):
    """The tool calls of Hunyuan 3: a separator behind the name, and tags around all calls."""

    tags = CallTags(call=OPEN, opening=("<tool_calls>",), closing=("</tool_calls>",))
    after_name = SEPARATOR
    before_all = "<tool_calls>\n"
    after_all = "\n</tool_calls>"
    markers = (*Glm45Parser.markers, SEPARATOR, "<tool_calls>", "</tool_calls>")
    samples = (
        f"<tool_calls>\n{OPEN}get_weather{SEPARATOR}\n{KEY}city{KEY_END}\n{VALUE}Paris{VALUE_END}\n"
        f"{CLOSE}\n</tool_calls>",
        f"Both.\n<tool_calls>\n{OPEN}search{SEPARATOR}\n{KEY}query{KEY_END}\n"
        f'{VALUE}a < b,\n"c"{VALUE_END}\n{CLOSE}\n{OPEN}now{SEPARATOR}{CLOSE}\n</tool_calls>',
    )


def _call(reader: Reader, types: ToolTypes) -> Reading[str | None]:
    yield from reader.spaces()
    name = yield from reader.take_while(r"[^\s<]")
    yield from reader.spaces()
    yield from reader.literal(SEPARATOR)
    yield from reader.spaces()
    tag = yield from reader.literal(KEY, CLOSE)
    if not name or tag is None:
        return None
    reader.call(name)
    end = ValueEnd(tag=VALUE_END, follows=(KEY, CLOSE, OPEN), unclosed=(f"\n{KEY}", f"\n{CLOSE}"))
    arguments = ArgumentsWriter(reader, end)
    while tag == KEY:
        key, _ = yield from reader.read_until(KEY_END, VALUE)
        yield from reader.spaces()
        yield from reader.literal(VALUE)
        key = key.strip()
        arguments.key(key)
        tag = yield from arguments.value(types.of(name, key))
    if tag is not None:
        arguments.close()
    return tag
