"""The LongCat format of tool calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, hookimpl

if TYPE_CHECKING:
    from octavo_registry import ToolParser

OCTAVO_API = "1"


@hookimpl
def register_tool_parsers(parsers: LazyRegistry[ToolParser]) -> None:
    """Add longcat."""
    parsers.add("longcat", "octavo_plugins.tool_parsers.longcat.parser:LongcatParser")


@hookimpl(trylast=True)
def select_tool_parser(chat_template: str | None) -> str | None:
    """Choose it for chat templates that have its tags."""
    return "longcat" if chat_template and "<longcat_tool_call>" in chat_template else None
