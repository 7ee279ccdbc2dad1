"""``<invoke name="NAME"><KEY>VALUE</KEY></invoke>``, each tag behind a mark of its own."""

from __future__ import annotations

import re
from collections.abc import Sequence

from octavo.tools import Reader, Reading
from octavo.tools.forms import Function
from octavo.tools.parameter_forms import parameters_form
from octavo.tools.parameters import STRING, ArgumentsWriter, ToolTypes, ValueEnd
from octavo_plugins.tool_parsers.elements import ElementParser, Elements
from octavo_plugins.tool_parsers.tagged_calls import CallTags
from octavo_registry.structure import Chain, Literal, Structure

MARK = "]<]minimax[>["
OPEN, CLOSE = f"{MARK}<tool_call>", f"{MARK}</tool_call>"
NAME_END = '">'
MOST_OF_TAG = 256
"""Characters of an end tag that are looked for: a model may make its name as long as it likes."""
_PLAIN_NAME = re.compile(r"[\w.-]+")


class MinimaxM3Parser(ElementParser):
    """The tool calls of MiniMax M3: parameters are elements that are called as they are."""

    samples: Sequence[str] = (
        f'{OPEN}\n{MARK}<invoke name="get_weather">{MARK}<city>Paris{MARK}</city>'
        f"{MARK}</invoke>\n{CLOSE}",
        f'Let me search.\n{OPEN}\n{MARK}<invoke name="search_web">{MARK}<tags>["a", "b"]'
        f"{MARK}</tags>{MARK}<query>x < y\n</query>{MARK}</query>{MARK}</invoke>\n"
        f'{MARK}<invoke name="now">{MARK}</invoke>\n{CLOSE}',
    )
    markers = (MARK,)
    tags = Elements(
        around=CallTags(call=f'{MARK}<invoke name="', opening=(OPEN,), closing=(CLOSE,)),
        parameter=f"{MARK}<",
        name_end=">",
        parameter_end=f"{MARK}</",
        call_end=f"{MARK}</invoke>",
        unclosed=(f"{MARK}</invoke>",),
        before_all=f"{OPEN}\n",
        after_all=f"\n{CLOSE}",
    )

    def _call_form(self, function: Function) -> Structure | None:
        parameters = parameters_form(
            function,
            before=lambda key: f"{MARK}<{key}>",
            end=lambda key: f"{MARK}</{key}>",
            after="",
        )
        properties = function.parameters.get("properties") or {}
        if parameters is None or not all(map(_PLAIN_NAME.fullmatch, properties)):
            return None
        begin = f"{self.tags.around.call}{function.name}{NAME_END}"
        return Chain((Literal(begin), parameters, Literal(self.tags.call_end)))

    def _call(self, reader: Reader, types: ToolTypes) -> Reading[str | None]:
        tags = self.tags
        name = (yield from reader.take_while(r'[^"<\n]')).strip()
        if not name or not (yield from reader.literal(NAME_END)):
            return None
        yield from reader.spaces()
        follows = (tags.parameter, tags.call_end, *tags.around.closing, *tags.around.begins)
        tag = yield from reader.literal(tags.parameter, tags.call_end, *tags.around.closing)
        if tag is None:
            return None
        reader.call(name)
        arguments = ArgumentsWriter(reader, self._value_end)
        while tag == tags.parameter:
            key, _ = yield from reader.read_until(tags.name_end, "\n")
            end = f"{tags.parameter_end}{key}>"[:MOST_OF_TAG]
            arguments.end = ValueEnd(tag=end, follows=follows, unclosed=tags.unclosed)
            arguments.key(key)
            tag = yield from arguments.value(types.of(name, key) or STRING)
        if tag is not None:
            arguments.close()
        return tag
