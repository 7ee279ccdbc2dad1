"""``functions.NAME:INDEX<|tool_call_argument_begin|>{...}`` between special tokens."""

from __future__ import annotations

from octavo.tools import Reader, Reading
from octavo.tools.forms import Function
from octavo_plugins.tool_parsers.special_tokens import SpecialTokenParser
from octavo_plugins.tool_parsers.tagged_calls import CallTags
from octavo_registry.structure import Chain, Literal, RegexText, Structure

CALLS_BEGIN = "<|tool_calls_section_begin|>"
CALLS_END = "<|tool_calls_section_end|>"
CALL_BEGIN = "<|tool_call_begin|>"
CALL_END = "<|tool_call_end|>"
ARGUMENTS = "<|tool_call_argument_begin|>"


class KimiK2Parser(SpecialTokenParser):
    """The tool calls of Kimi K2. The text before the arguments is the call's id."""

    samples = (
        f'{CALLS_BEGIN}{CALL_BEGIN}functions.get_weather:0{ARGUMENTS}{{"city": "Paris"}}'
        f"{CALL_END}{CALLS_END}",
        f"Let me see.{CALLS_BEGIN}{CALL_BEGIN}functions.search:3 {ARGUMENTS} "
        f'{{"query": "a \\"b\\" <c>"}} {CALL_END}{CALL_BEGIN}functions.now:4{ARGUMENTS}{{}}'
        f"{CALL_END}{CALLS_END}",
    )
    markers = (CALLS_BEGIN, CALLS_END, CALL_BEGIN, CALL_END, ARGUMENTS)
    tags = CallTags(
        call=CALL_BEGIN,
        opening=(CALLS_BEGIN, "<|tool_call_section_begin|>"),
        closing=(CALL_END, CALLS_END, "<|tool_call_section_end|>"),
    )

    def head_form(self, function: Function) -> Structure:
        """Return the id; calls are counted through the conversation."""
        return Chain(
            (
                Literal(f"functions.{function.name}:"),
                RegexText("[0-9]{1,3}"),
                Literal(ARGUMENTS),
            )
        )

    def read_head(self, reader: Reader) -> Reading[tuple[str, str | None]]:
        """Read the id, which has the name in it."""
        id = (yield from reader.take_while("[^<]")).strip()
        if not (yield from reader.literal(ARGUMENTS)):
            return "", None
        name, _, index = id.rpartition(":")
        return (name.removeprefix("functions.") if index.isdigit() else ""), id
