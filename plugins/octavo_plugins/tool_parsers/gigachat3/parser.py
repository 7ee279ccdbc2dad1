"""``function call<|role_sep|>`` and ``{"name": ..., "arguments": {...}}``."""

from __future__ import annotations

from octavo.tools.json_parser import JsonCallParser


class Gigachat3Parser(JsonCallParser):
    """The tool calls of GigaChat 3, and of 3.1, which has a token for them."""

    opens = (
        "<|message_sep|>\n\nfunction call<|role_sep|>",
        "function call<|role_sep|>",
        "<|function_call|>",
    )
    closes = ("<|message_sep|>",)
    markers = ("<|message_sep|>", "<|role_sep|>", "<|function_call|>")
    before_each = "<|message_sep|>\n\nfunction call<|role_sep|>\n"
    samples = (
        '<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "get_weather", "arguments": '
        '{"city": "Paris"}}',
        'I look.<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "now", "arguments": {}}',
        '<|function_call|>{"name": "add", "arguments": {"x": [1, {"y": null}]}}<|message_sep|>',
    )
