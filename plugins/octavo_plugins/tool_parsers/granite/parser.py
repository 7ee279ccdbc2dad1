"""``<|tool_call|>[{"name": ..., "arguments": {...}}, ...]``: one array of all calls."""

from __future__ import annotations

from octavo.tools.json_calls import json_calls
from octavo.tools.json_parser import JsonCallParser
from octavo.tools.reader import Reader, Reading


class GraniteParser(JsonCallParser):
    """The tool calls of Granite 3, which may leave out the tag at the beginning of a message."""

    opens = ("<|tool_call|>", "<tool_call>")
    closes = ("<|/tool_call|>", "</tool_call>")
    before_all = "<|tool_call|>["
    between = ", "
    after_all = "]"
    samples = (
        '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris"}}]',
        '<tool_call>[{"name": "now", "arguments": {}}, {"name": "add", "arguments": {"x": "]"}}]',
        '[{"name": "now", "arguments": {}}]',
        "[1] is a reference.",
    )

    def message(self, reader: Reader) -> Reading[None]:
        """Read a message to its end."""
        reader.hold()
        yield from reader.spaces()
        if (yield from reader.peek()) != "[" or not (
            yield from json_calls(reader, needs_arguments=True)
        ):
            reader.give_back()
        yield from super().message(reader)


class Granite4Parser(JsonCallParser):
    """The tool calls of Granite 4: each between tags of its own."""

    opens = ("<tool_call>",)
    closes = ("</tool_call>",)
    before_each = "<tool_call>\n"
    after_each = "\n</tool_call>"
    between = "\n"
    samples = (
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>',
        'Both.\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\n'
        '<tool_call>\n{"name": "add", "arguments": {"x": "{1}"}}\n</tool_call>',
    )
