"""The tool calls of MiniMax M3."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, hookimpl

if TYPE_CHECKING:
    from octavo_registry import ToolParser

OCTAVO_API = "1"


@hookimpl
def register_tool_parsers(parsers: LazyRegistry[ToolParser]) -> None:
    """Add minimax_m3."""
    parsers.add("minimax_m3", "octavo_plugins.tool_parsers.minimax_m3.parser:MinimaxM3Parser")


@hookimpl(trylast=True)
def select_tool_parser(chat_template: str | None) -> str | None:
    """Choose it for chat templates that have its mark before their tags."""
    if chat_template and "]<]minimax[>[" in chat_template and "<invoke" in chat_template:
        return "minimax_m3"
    return None
