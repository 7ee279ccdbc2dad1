"""``{"name": ..., "parameters": {...}}``, bare or behind ``<|python_tag|>``."""

from __future__ import annotations

from octavo.tools.json_calls import json_call
from octavo.tools.json_parser import JsonCallParser
from octavo.tools.reader import Reader, Reading

TAG = "<|python_tag|>"


class Llama3JsonParser(JsonCallParser):
    """The tool calls of Llama 3.1, 3.2 and 3.3; several are separated by semicolons.

    Any object with a name and arguments is a call; other objects, a JSON answer say, are content.
    """

    opens = (TAG,)
    triggers = ('{"name": ',)
    arguments_key = "parameters"
    between = "; "
    samples = (
        '{"name": "get_weather", "parameters": {"city": "Paris"}}',
        '<|python_tag|>{"type": "function", "name": "add", "parameters": {"x": "{;}"}}; '
        '{"name": "now", "parameters": {}}',
        '{"name": "Ada", "born": 1815}',
        '<|python_tag|>brave_search.call(query="{}")',
    )

    def message(self, reader: Reader) -> Reading[None]:
        """Read a message to its end."""
        while tag := (yield from reader.text_until(TAG, "{")):
            if tag == "{":
                # Of braces in a row only the last can begin a call, and few do: that is seen early.
                reader.content((yield from reader.take_while(r"\{")))
                character = reader.ahead or (yield from reader.peek())
                if character != '"' and not character.isspace():
                    reader.content(tag)
                    continue
            reader.hold(tag)
            if tag == TAG:
                yield from reader.spaces()
            if (yield from json_call(reader, needs_arguments=True, opened=tag == "{")):
                yield from reader.skip(";")
            else:
                reader.give_back()
