"""``<|tools_prefix|>[{"NAME": {...}}, ...]<|tools_suffix|>``: one array of all calls."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.tools import Reader, Reading
from octavo.tools.forms import call_form, functions
from octavo.tools.json_calls import json_arguments
from octavo.tools.json_parser import JsonCallParser
from octavo_registry import CallForm, ToolDefinition
from octavo_registry.structure import Chain, JsonText, Literal

OPEN, CLOSE = "<|tools_prefix|>", "<|tools_suffix|>"


class ApertusParser(JsonCallParser):
    """The tool calls of Apertus: objects whose only key is the name."""

    opens = (OPEN,)
    closes = (CLOSE,)
    samples = (
        f'{OPEN}[{{"get_weather": {{"city": "Paris"}}}}]{CLOSE}',
        f'Both.{OPEN}[{{"now": {{}}}}, {{"add": {{"x": [1, "]}}"]}}}}]{CLOSE}Done.',
    )

    def form(self, tools: Sequence[ToolDefinition], *, parallel: bool) -> CallForm:
        """Return the form of the models' chat template."""
        calls = [
            Chain((Literal(f"{{{each.json_name}: "), JsonText(each.parameters), Literal("}")))
            for each in functions(tools)
        ]
        return call_form(
            calls,
            parallel=parallel,
            triggers=self.opens,
            before_all=f"{OPEN}[",
            between=", ",
            after_all=f"]{CLOSE}",
        )

    def message(self, reader: Reader) -> Reading[None]:
        """Read a message to its end."""
        while tag := (yield from reader.text_until(OPEN)):
            reader.hold(tag)
            yield from reader.spaces()
            if not ((yield from reader.literal("[")) and (yield from _calls(reader))):
                reader.give_back()
                continue
            reader.hold()
            yield from reader.spaces()
            if (yield from reader.literal("]")):
                reader.drop()
                yield from reader.skip(CLOSE)
            else:
                reader.give_back()


def _calls(reader: Reader) -> Reading[bool]:
    """Read calls with commas between; return whether there was one."""
    found = False
    while (yield from _call(reader)):
        found = True
        reader.hold()
        yield from reader.spaces()
        if not (yield from reader.literal(",")):
            break
        yield from reader.spaces()
    if found:
        reader.give_back()
    return found


def _call(reader: Reader) -> Reading[bool]:
    """Read ``{"NAME": {...}}``."""
    yield from reader.spaces()
    if not (yield from reader.literal("{")):
        return False
    yield from reader.spaces()
    name = yield from reader.json_string()
    yield from reader.spaces()
    if not name or not (yield from reader.literal(":")):
        return False
    yield from reader.spaces()
    if (yield from json_arguments(reader, lambda: reader.begin_call(name))) is None:
        return False
    reader.hold()
    yield from reader.spaces()
    if (yield from reader.literal("}")):
        reader.drop()
        return True
    reader.give_back()
    return False
