"""``<tool_calls>[{"name": ..., "arguments": {...}}, ...]</tool_calls>``, not inside thoughts."""

from __future__ import annotations

from octavo.tools.json_calls import json_calls
from octavo.tools.json_parser import JsonCallParser
from octavo.tools.reader import Reader, Reading

THINK = "<think>"


class HunyuanA13bParser(JsonCallParser):
    """The tool calls of Hunyuan-A13B. Calls that it only thinks about are content."""

    opens = ("<tool_calls>",)
    closes = ("</tool_calls>",)
    before_all = "<tool_calls>["
    between = ", "
    after_all = "]</tool_calls>"
    samples = (
        '<tool_calls>[{"name": "get_weather", "arguments": {"city": "Paris"}}]</tool_calls>',
        '<think>\n<tool_calls>[{"name": "no", "arguments": {}}]</tool_calls>?\n</think>\n'
        '<answer>Now: <tool_calls>[{"name": "now", "arguments": {}},\n{"name": "add", '
        '"arguments": {"x": {}}}]</tool_calls></answer>',
    )

    def message(self, reader: Reader) -> Reading[None]:
        """Read a message to its end."""
        while tag := (yield from reader.text_until(*self.opens, THINK)):
            reader.hold(tag)
            if tag == THINK:
                reader.give_back()
                reader.content((yield from reader.text_until("</think>")) or "")
                continue
            yield from reader.spaces()
            if (yield from json_calls(reader)):
                yield from reader.skip(*self.closes)
            else:
                reader.give_back()
