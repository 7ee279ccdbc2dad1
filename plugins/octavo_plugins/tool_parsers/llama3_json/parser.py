"""``{"name": ..., "parameters": {...}}``, bare or behind ``<|python_tag|>``."""

from __future__ import annotations

import re
from collections.abc import Sequence

from octavo.tools.json_calls import json_call
from octavo.tools.json_parser import JsonCallParser
from octavo.tools.reader import Reader, Reading

TAG = "<|python_tag|>"
_NO_CALL = r'(?:\s*+(?=[^\s"])|\s*+"(?:[^"\\]++|\\.)*+"\s*+(?=[^\s:]))'
_NO_CALLS = re.compile(rf"{_NO_CALL}(?:[^{{<]*+\{{{_NO_CALL})*+", re.DOTALL)
"""What follows a brace that begins no call, and further such braces."""


class Llama3JsonParser(JsonCallParser):
    """The tool calls of Llama 3.1, 3.2 and 3.3; several are separated by semicolons.

    Any object with a name and arguments is a call; other objects, a JSON answer say, are content.
    """

    opens = (TAG,)
    triggers = ('{"name": ',)
    arguments_key = "parameters"
    between = "; "
    samples: Sequence[str] = (
        '{"name": "get_weather", "parameters": {"city": "Paris"}}',
        '<|python_tag|>{"type": "function", "name": "add", "parameters": {"x": "{;}"}}; '
        '{"name": "now", "parameters": {}}',
        '{"name": "Ada", "born": 1815}',
        '<|python_tag|>brave_search.call(query="{}")',
    )

    def message(self, reader: Reader) -> Reading[None]:
        """Read a message to its end."""
        while tag := (yield from reader.text_until(*self.opens, "{")):
            if tag == "{" and (no_calls := reader.take_at_once(_NO_CALLS)):
                reader.content(tag + no_calls[0])  # few braces begin a call
                continue
            reader.hold(tag)
            if tag in self.opens:
                yield from reader.spaces()
            if (yield from json_call(reader, needs_arguments=True, opened=tag == "{")):
                yield from reader.skip(";", *self.closes)
            else:
                reader.give_back()


class Llama4JsonParser(Llama3JsonParser):
    """The JSON calls of Llama 4, bare or between ``<|python_start|>`` and ``<|python_end|>``."""

    opens = ("<|python_start|>",)
    closes = ("<|python_end|>",)
    samples = (
        '{"name": "get_weather", "parameters": {"city": "Paris"}}',
        '<|python_start|>{"name": "add", "parameters": {"x": "{;}"}}; '
        '{"name": "now", "parameters": {}}<|python_end|>',
        '{"name": "Ada", "born": 1815}',
    )
