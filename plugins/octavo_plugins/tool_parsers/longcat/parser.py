"""``<longcat_tool_call>{"name": ..., "arguments": {...}}</longcat_tool_call>``."""

from __future__ import annotations

from octavo.tools.json_parser import JsonCallParser


class LongcatParser(JsonCallParser):
    """The tool calls of LongCat Flash."""

    opens = ("<longcat_tool_call>",)
    closes = ("</longcat_tool_call>",)
    before_each = "<longcat_tool_call>\n"
    after_each = "\n</longcat_tool_call>"
    between = "\n"
    samples = (
        '<longcat_tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n'
        "</longcat_tool_call>",
        "Both, then.\n"
        '<longcat_tool_call>\n{"name": "now", "arguments": {}}\n</longcat_tool_call>\n'
        '<longcat_tool_call>\n{"name": "add", "arguments": {"x": [1, 2]}}\n</longcat_tool_call>',
    )
