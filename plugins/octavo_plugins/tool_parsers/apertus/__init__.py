"""The tool calls of Apertus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, hookimpl

if TYPE_CHECKING:
    from octavo_registry import ToolParser

OCTAVO_API = "1"


@hookimpl
def register_tool_parsers(parsers: LazyRegistry[ToolParser]) -> None:
    """Add apertus."""
    parsers.add("apertus", "octavo_plugins.tool_parsers.apertus.parser:ApertusParser")


@hookimpl(trylast=True)
def select_tool_parser(chat_template: str | None) -> str | None:
    """Choose it for chat templates that have its tags."""
    return "apertus" if chat_template and "<|tools_prefix|>" in chat_template else None
