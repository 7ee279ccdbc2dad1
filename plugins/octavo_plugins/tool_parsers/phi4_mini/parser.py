"""``functools[{"name": ..., "arguments": {...}}, ...]``: one array of all calls."""

from __future__ import annotations

from octavo.tools.json_parser import JsonCallParser


class Phi4MiniParser(JsonCallParser):
    """The tool calls of Phi-4-mini, which also writes ``<|tool_call|>[...]<|/tool_call|>``."""

    opens = ("functools", "<|tool_call|>")
    closes = ("<|/tool_call|>",)
    markers = ("<|tool_call|>", "<|/tool_call|>")
    triggers = ("functools[",)
    before_all = "functools["
    between = ", "
    after_all = "]"
    samples = (
        'functools[{"name": "get_weather", "arguments": {"city": "Paris"}}]',
        'functools[\n  {"name": "now", "arguments": {}},\n  {"name": "add", "arguments": '
        '{"x": [1, [2]]}}\n]',
        "The module functools has functools.cache.",
        '<|tool_call|>[{"name": "now", "arguments": {}}]<|/tool_call|>',
    )
