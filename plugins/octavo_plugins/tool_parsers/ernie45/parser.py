"""``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, set off by empty lines."""

from __future__ import annotations

from octavo.tools.json_parser import JsonCallParser


class Ernie45Parser(JsonCallParser):
    """The tool calls of ERNIE 4.5 with thinking. Up to three line breaks before them are markup."""

    opens = ("<tool_call>", "\n<tool_call>", "\n\n<tool_call>", "\n\n\n<tool_call>")
    closes = ("</tool_call>",)
    before_each = "<tool_call>\n"
    after_each = "\n</tool_call>"
    between = "\n"
    samples = (
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "北京"}}\n</tool_call>\n',
        "I need two tools.\n</think>\n\n"
        '<tool_call>\n{"name": "search", "arguments": {"query": "a \\"b\\" {c}"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\n',
    )

    @property
    def markers(self) -> tuple[str, ...]:
        """The tags without their line breaks."""
        return (self.opens[0], *self.closes)
