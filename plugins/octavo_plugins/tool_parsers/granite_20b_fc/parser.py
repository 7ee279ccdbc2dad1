"""``<function_call> {"name": ..., "arguments": {...}}``, without a closing tag."""

from __future__ import annotations

from octavo.tools.json_parser import JsonCallParser


class Granite20bFcParser(JsonCallParser):
    """The tool calls of granite-20b-functioncalling."""

    opens = ("<function_call>",)
    before_each = "<function_call> "
    samples = (
        '<function_call> {"name": "get_weather", "arguments": {"city": "Paris"}}',
        'So: <function_call> {"name": "now", "arguments": {}}<function_call> {"name": "add", '
        '"arguments": {"x": "<function_call>"}}\n',
    )
