"""The tool calls of GigaChat 3."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, hookimpl

if TYPE_CHECKING:
    from octavo_registry import ToolParser

OCTAVO_API = "1"


@hookimpl
def register_tool_parsers(parsers: LazyRegistry[ToolParser]) -> None:
    """Add gigachat3."""
    parsers.add("gigachat3", "octavo_plugins.tool_parsers.gigachat3.parser:Gigachat3Parser")


@hookimpl(trylast=True)
def select_tool_parser(chat_template: str | None) -> str | None:
    """Choose it for chat templates that have its tokens."""
    if chat_template and "<|role_sep|>" in chat_template and "function call" in chat_template:
        return "gigachat3"
    return None
