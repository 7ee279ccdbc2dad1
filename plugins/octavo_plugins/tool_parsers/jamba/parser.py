"""``<tool_calls>[{"name": ..., "arguments": {...}}, ...]</tool_calls>``: one array of all calls."""

from __future__ import annotations

from octavo.tools.json_parser import JsonCallParser


class JambaParser(JsonCallParser):
    """The tool calls of Jamba 1.5 and later."""

    opens = ("<tool_calls>",)
    closes = ("</tool_calls>",)
    before_all = "<tool_calls>[\n    "
    between = ",\n    "
    after_all = "\n]</tool_calls>"
    samples = (
        '<tool_calls>[\n    {"name": "get_weather", "arguments": {"x": "Paris"}}\n]</tool_calls>',
        ' I look.<tool_calls>[{"name": "now", "arguments": {}},{"name": "add", "arguments": '
        '{"x": "[1, {2}]"}}]</tool_calls>',
    )
