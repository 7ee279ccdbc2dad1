"""The Granite formats of tool calls: Granite 3 and 4."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, hookimpl

if TYPE_CHECKING:
    from octavo_registry import ToolParser

OCTAVO_API = "1"


@hookimpl
def register_tool_parsers(parsers: LazyRegistry[ToolParser]) -> None:
    """Add granite and granite4."""
    parsers.add("granite", "octavo_plugins.tool_parsers.granite.parser:GraniteParser")
    parsers.add("granite4", "octavo_plugins.tool_parsers.granite.parser:Granite4Parser")


@hookimpl(trylast=True)
def select_tool_parser(chat_template: str | None) -> str | None:
    """Choose it for chat templates that have its tags."""
    if not chat_template or "<|start_of_role|>" not in chat_template:
        return None
    if "<|tool_call|>" in chat_template:
        return "granite"
    return "granite4" if "<tool_call>" in chat_template else None
