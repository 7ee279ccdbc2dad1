"""The JSON formats of tool calls of Llama 3.1, 3.2, 3.3 and 4."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, hookimpl

if TYPE_CHECKING:
    from octavo_registry import ToolParser

OCTAVO_API = "1"


@hookimpl
def register_tool_parsers(parsers: LazyRegistry[ToolParser]) -> None:
    """Add llama3_json and llama4_json."""
    parsers.add("llama3_json", "octavo_plugins.tool_parsers.llama3_json.parser:Llama3JsonParser")
    parsers.add("llama4_json", "octavo_plugins.tool_parsers.llama3_json.parser:Llama4JsonParser")


@hookimpl(trylast=True)
def select_tool_parser(chat_template: str | None) -> str | None:
    """Choose it for chat templates that ask for its JSON."""
    if chat_template and "dictionary of argument name" in chat_template:
        return "llama4_json" if "<|header_start|>" in chat_template else "llama3_json"
    return None
