"""The tool calls of FunctionGemma and Gemma 4."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, hookimpl

if TYPE_CHECKING:
    from octavo_registry import ToolParser

OCTAVO_API = "1"


@hookimpl
def register_tool_parsers(parsers: LazyRegistry[ToolParser]) -> None:
    """Add the formats, which differ in their tags."""
    module = "octavo_plugins.tool_parsers.gemma.parser"
    parsers.add("functiongemma", f"{module}:FunctionGemmaParser")
    parsers.add("gemma4", f"{module}:Gemma4Parser")


@hookimpl(trylast=True)
def select_tool_parser(chat_template: str | None) -> str | None:
    """Choose by the tags of the chat template."""
    for tag, name in (("<|tool_call>", "gemma4"), ("<start_function_call>", "functiongemma")):
        if chat_template and tag in chat_template:
            return name
    return None
