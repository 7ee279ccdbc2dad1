"""The Granite format of tool calls: Granite 3."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, hookimpl

if TYPE_CHECKING:
    from octavo_registry import ToolParser

OCTAVO_API = "1"


@hookimpl
def register_tool_parsers(parsers: LazyRegistry[ToolParser]) -> None:
    """Add granite."""
    parsers.add("granite", "octavo_plugins.tool_parsers.granite.parser:GraniteParser")


@hookimpl(trylast=True)
def select_tool_parser(chat_template: str | None) -> str | None:
    """Choose it for chat templates that have its tags."""
    if chat_template and "<|start_of_role|>" in chat_template and "<|tool_call|>" in chat_template:
        return "granite"
    return None
