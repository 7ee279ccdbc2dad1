"""The tool calls of MiniCPM5."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, hookimpl

if TYPE_CHECKING:
    from octavo_registry import ToolParser

OCTAVO_API = "1"


@hookimpl
def register_tool_parsers(parsers: LazyRegistry[ToolParser]) -> None:
    """Add minicpm5."""
    parsers.add("minicpm5", "octavo_plugins.tool_parsers.minicpm5.parser:Minicpm5Parser")


@hookimpl(trylast=True)
def select_tool_parser(chat_template: str | None) -> str | None:
    """Choose it for chat templates that have its tags."""
    has_tags = chat_template and '<function name="' in chat_template and "</param>" in chat_template
    return "minicpm5" if has_tags else None
