"""The format of tool calls of granite-20b-functioncalling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, hookimpl

if TYPE_CHECKING:
    from octavo_registry import ToolParser

OCTAVO_API = "1"


@hookimpl
def register_tool_parsers(parsers: LazyRegistry[ToolParser]) -> None:
    """Add granite-20b-fc."""
    parsers.add(
        "granite-20b-fc", "octavo_plugins.tool_parsers.granite_20b_fc.parser:Granite20bFcParser"
    )


@hookimpl(trylast=True)
def select_tool_parser(chat_template: str | None) -> str | None:
    """Choose it for chat templates that have its tags."""
    return (
        "granite-20b-fc" if chat_template and "<|function_call_library|>" in chat_template else None
    )
