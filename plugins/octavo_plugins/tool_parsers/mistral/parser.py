"""``[TOOL_CALLS][{"name": ..., "arguments": {...}}]``, or ``[TOOL_CALLS]name[ARGS]{...}``."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.tools.forms import call_form, functions
from octavo.tools.json_calls import json_arguments, json_calls
from octavo.tools.json_parser import JsonCallParser
from octavo.tools.reader import Reader, Reading
from octavo_registry import CallForm, ToolDefinition
from octavo_registry.structure import Chain, JsonText, Literal
from octavo_registry.tokenizer import Tokenizer

TAG, ID, ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"


class MistralParser(JsonCallParser):
    """The tool calls of Mistral's models, old (one array of all calls) and new (a tag each)."""

    opens = (TAG,)
    markers = (TAG, ID, ARGUMENTS)
    before_all = "[TOOL_CALLS] ["
    between = ", "
    after_all = "]"
    samples = (
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}, "id": "aB3dE6gH9"}]',
        'Two.[TOOL_CALLS]add[ARGS]{"x": "[ARGS]"}[TOOL_CALLS]now[ARGS]{}',
        '[TOOL_CALLS]add[CALL_ID]aB3dE6gH9[ARGS]{"x": 1}',
        '[TOOL_CALLS]add{"x": 1}',
    )

    def __init__(self, tokenizer: Tokenizer | None = None) -> None:
        """Take the newer form for the model's own, unless its chat template has the older one."""
        template = str(tokenizer.chat_template) if tokenizer else ""
        self._writes_array = TAG in template and ARGUMENTS not in template

    def form(self, tools: Sequence[ToolDefinition], *, parallel: bool) -> CallForm:
        """Return the form of the model's chat template."""
        if self._writes_array:
            return super().form(tools, parallel=parallel)
        calls = [
            Chain((Literal(f"{TAG}{each.name}{ARGUMENTS}"), JsonText(each.parameters)))
            for each in functions(tools)
        ]
        return call_form(calls, parallel=parallel, triggers=self.opens)

    def message(self, reader: Reader) -> Reading[None]:
        """Read a message to its end."""
        while tag := (yield from reader.text_until(TAG)):
            reader.hold(tag)
            yield from reader.spaces()
            in_json = (yield from reader.peek()) in ("[", "{")
            if not (yield from (json_calls(reader) if in_json else _named_call(reader))):
                reader.give_back()


def _named_call(reader: Reader) -> Reading[bool]:
    """Read ``name[CALL_ID]id[ARGS]{...}``, of which only name and object must be there."""
    name = yield from reader.take_while(r"[\w.\-]")
    id = ""
    if (yield from reader.literal(ID)):
        id = yield from reader.take_while(r"\w")
    yield from reader.literal(ARGUMENTS)
    yield from reader.spaces()
    if not name or (yield from reader.peek()) != "{":
        return False
    arguments = json_arguments(reader, lambda: reader.begin_call(name, id or None))
    return (yield from arguments) is not None
