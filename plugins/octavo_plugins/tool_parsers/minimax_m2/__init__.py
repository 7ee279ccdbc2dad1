"""The tool calls of MiniMax M2."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, hookimpl

if TYPE_CHECKING:
    from octavo_registry import ToolParser

OCTAVO_API = "1"


@hookimpl
def register_tool_parsers(parsers: LazyRegistry[ToolParser]) -> None:
    """Add minimax_m2."""
    parsers.add("minimax_m2", "octavo_plugins.tool_parsers.minimax_m2.parser:MinimaxM2Parser")


@hookimpl(trylast=True)
def select_tool_parser(chat_template: str | None) -> str | None:
    """Choose it for chat templates that have its tags."""
    return "minimax_m2" if chat_template and "<minimax:tool_call>" in chat_template else None
