"""``NAME<｜tool▁sep｜>{...}`` between the special tokens of a call and of all calls."""

from __future__ import annotations

from octavo.tools import Reader, Reading
from octavo.tools.forms import Function
from octavo_plugins.tool_parsers.special_tokens import SpecialTokenParser
from octavo_plugins.tool_parsers.tagged_calls import CallTags
from octavo_registry.structure import Literal, Structure

CALLS_BEGIN = "<｜tool▁calls▁begin｜>"
CALLS_END = "<｜tool▁calls▁end｜>"
CALL_BEGIN = "<｜tool▁call▁begin｜>"
CALL_END = "<｜tool▁call▁end｜>"
SEPARATOR = "<｜tool▁sep｜>"


class DeepseekV31Parser(SpecialTokenParser):
    """The tool calls of DeepSeek V3.1; those of V3 are read too."""

    samples = (
        f'{CALLS_BEGIN}{CALL_BEGIN}get_weather{SEPARATOR}{{"city": "Paris"}}{CALL_END}{CALLS_END}',
        f'Let me see.{CALLS_BEGIN}{CALL_BEGIN}search{SEPARATOR}{{"query": "a \\"b\\" <c>"}}'
        f"{CALL_END}"
        f"{CALL_BEGIN}now{SEPARATOR}{{}}{CALL_END}{CALLS_END}",
    )
    markers = (CALLS_BEGIN, CALLS_END, CALL_BEGIN, CALL_END, SEPARATOR)
    tags = CallTags(call=CALL_BEGIN, opening=(CALLS_BEGIN,), closing=(CALL_END, CALLS_END))

    def head_form(self, function: Function) -> Structure:
        """Return the name."""
        return Literal(f"{function.name}{SEPARATOR}")

    def read_head(self, reader: Reader) -> Reading[tuple[str, str | None]]:
        """Read the name, or the word "function" and the name behind the separator."""
        name = (yield from reader.take_while(r"[^<\n]")).strip()
        if not (yield from reader.literal(SEPARATOR)):
            return "", None
        yield from reader.spaces()
        if name == "function":
            behind = yield from reader.take_while(r"[^<{\"`\n]")
            yield from reader.spaces()
            name = behind.strip() or name
        yield from reader.literal("```json", "```")
        # At the end of the text, the name may have been cut short.
        return (name if (yield from reader.peek()) else ""), None
