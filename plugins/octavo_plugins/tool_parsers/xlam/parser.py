"""``[{"name": ..., "arguments": {...}}, ...]``: one array of all calls, bare or marked."""

from __future__ import annotations

from octavo.tools.json_calls import json_calls
from octavo.tools.json_parser import JsonCallParser
from octavo.tools.reader import Reader, Reading

THOUGHT = "</think>"
FENCE = "```"
CLOSES = {
    "```json": FENCE,
    FENCE: FENCE,
    "<tool_call>": "</tool_call>",
    "[TOOL_CALLS]": "",
    THOUGHT: "",
    "": "",
}
"""What may stand before the array, and what after it then. Without a mark it must come first."""


class XlamParser(JsonCallParser):
    """The tool calls of xLAM: an array at the beginning, after a thought, or marked."""

    opens = ("[TOOL_CALLS]", "<tool_call>")
    closes = ("</tool_call>",)
    triggers = ("[",)
    before_all = "["
    between = ", "
    after_all = "]"
    samples = (
        '[{"name": "get_weather", "arguments": {"city": "Paris"}}]',
        'So:\n```json\n[{"name": "now", "arguments": {}}, {"name": "add", "arguments": {"x": 1}}]'
        "\n```\nDone.",
        '<think>Hm.</think>[{"name": "now", "arguments": {}}]',
        '<tool_call>[{"name": "now", "arguments": {}}]</tool_call>',
        "```json\n[1, 2]\n```",
        '[TOOL_CALLS] [{"name": "now", "arguments": {}}]',
        '<think>Hm.</think>\n[TOOL_CALLS][{"name": "now", "arguments": {}}]',
    )

    def message(self, reader: Reader) -> Reading[None]:
        """Read a message to its end."""
        marks = sorted(CLOSES)[1:]
        mark: str | None = ""
        while mark is not None:
            if mark == THOUGHT:
                reader.content(mark)
                mark = ""
            reader.hold(mark)
            yield from reader.spaces()
            if not mark and (yield from reader.literal("[TOOL_CALLS]")):
                yield from reader.spaces()
            array = (yield from reader.peek()) == "["
            if not array or not (yield from json_calls(reader, needs_arguments=True)):
                reader.give_back()
            elif CLOSES[mark]:
                yield from reader.skip(CLOSES[mark])
            mark = yield from reader.text_until(*marks)
