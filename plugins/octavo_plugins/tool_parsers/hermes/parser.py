"""``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, one pair of tags a call."""

from __future__ import annotations

from octavo.tools.json_parser import JsonCallParser


class HermesParser(JsonCallParser):
    """The tool calls of Hermes 2 Pro and 3, Qwen 2.5 and 3."""

    opens = ("<tool_call>",)
    closes = ("</tool_call>",)
    before_each = "<tool_call>\n"
    after_each = "\n</tool_call>"
    between = "\n"
    samples = (
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>',
        "I'll look at both.\n"
        '<tool_call>\n{"name": "search", "arguments": {"query": "a \\"b\\" {c}"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
        '<tool_call>{"arguments": {"x": [1, {"y": null}]}, "name": "late"}</tool_call> Done.',
    )
