"""``function<｜tool▁sep｜>NAME`` and arguments in a code block, between special tokens."""

from __future__ import annotations

from octavo.tools.forms import Function
from octavo_plugins.tool_parsers.deepseek_v31.parser import (
    CALL_BEGIN,
    CALL_END,
    CALLS_BEGIN,
    CALLS_END,
    SEPARATOR,
    DeepseekV31Parser,
)
from octavo_registry.structure import Literal, Structure


class DeepseekV3Parser(DeepseekV31Parser):
    """The tool calls of DeepSeek V3 and R1; those of V3.1 are read too."""

    samples = (
        f"{CALLS_BEGIN}{CALL_BEGIN}function{SEPARATOR}get_weather\n"
        f'```json\n{{"city": "Paris"}}\n```{CALL_END}{CALLS_END}',
        f"Let me see.{CALLS_BEGIN}{CALL_BEGIN}function{SEPARATOR}search\n"
        f'```json\n{{"query": "```\\n<b>"}}\n```{CALL_END}\n'
        f"{CALL_BEGIN}function{SEPARATOR}now\n```json\n{{}}\n```{CALL_END}{CALLS_END}",
    )
    after_json = "\n```"
    between_calls = "\n"

    def head_form(self, function: Function) -> Structure:
        """Return kind, name, and the beginning of the code block."""
        return Literal(f"function{SEPARATOR}{function.name}\n```json\n")
