"""``<|START_ACTION|>[{"tool_call_id": ..., "tool_name": ..., "parameters": {...}}]``."""

from __future__ import annotations

import json
from collections.abc import Sequence

from octavo.tools import Reader, Reading
from octavo.tools.forms import call_form, functions
from octavo.tools.json_calls import json_calls
from octavo.tools.json_parser import JsonCallParser
from octavo_registry import CallForm, ToolDefinition
from octavo_registry.structure import Chain, JsonText, Literal, RegexText

OPEN, CLOSE = "<|START_ACTION|>", "<|END_ACTION|>"


class CohereCommand3Parser(JsonCallParser):
    """The tool calls of Command R7B and Command A; the tokens around an answer are left out."""

    opens = (OPEN,)
    closes = (CLOSE,)
    around: tuple[str, ...] = ("<|START_RESPONSE|>", "<|END_RESPONSE|>")
    samples: Sequence[str] = (
        f'{OPEN}[\n    {{"tool_call_id": "0", "tool_name": "get_weather", "parameters": '
        f'{{"city": "Paris"}}}}\n]{CLOSE}',
        f'I look.{OPEN}[{{"tool_call_id": "0", "tool_name": "now", "parameters": {{}}}},\n'
        f'{{"tool_call_id": "1", "tool_name": "add", "parameters": {{"x": "[1]"}}}}]{CLOSE}',
        "<|START_RESPONSE|>It is noon.<|END_RESPONSE|>",
    )

    @property
    def markers(self) -> Sequence[str]:
        """The tokens."""
        return (OPEN, CLOSE, *self.around)

    def form(self, tools: Sequence[ToolDefinition], *, parallel: bool) -> CallForm:
        """Return the form of the models' chat template."""
        calls = [
            Chain(
                (
                    Literal('{"tool_call_id": "'),
                    RegexText("[0-9]{1,3}"),
                    Literal(f'", "tool_name": {json.dumps(each.name)}, "parameters": '),
                    JsonText(each.parameters),
                    Literal("}"),
                )
            )
            for each in functions(tools)
        ]
        return call_form(
            calls,
            parallel=parallel,
            triggers=self.opens,
            before_all=f"{OPEN}[\n    ",
            between=",\n    ",
            after_all=f"\n]{CLOSE}",
        )

    def message(self, reader: Reader) -> Reading[None]:
        """Read a message to its end."""
        while tag := (yield from reader.text_until(OPEN, *self.around)):
            if tag != OPEN:
                continue
            reader.hold(tag)
            yield from reader.spaces()
            if (yield from json_calls(reader, name_key="tool_name")):
                yield from reader.skip(CLOSE)
            else:
                reader.give_back()


class CohereCommand4Parser(CohereCommand3Parser):
    """The tool calls of Command A+, which has other tokens around the text of an answer."""

    around = ("<|START_TEXT|>", "<|END_TEXT|>", *CohereCommand3Parser.around)
    samples = (*CohereCommand3Parser.samples, "<|START_TEXT|>It is noon.<|END_TEXT|>")
