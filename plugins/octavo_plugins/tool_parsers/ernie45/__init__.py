"""The tool calls of ERNIE 4.5 with thinking."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, hookimpl

if TYPE_CHECKING:
    from octavo_registry import ToolParser

OCTAVO_API = "1"


@hookimpl
def register_tool_parsers(parsers: LazyRegistry[ToolParser]) -> None:
    """Add ernie45."""
    parsers.add("ernie45", "octavo_plugins.tool_parsers.ernie45.parser:Ernie45Parser")


@hookimpl(trylast=True)
def select_tool_parser(architecture: str, chat_template: str | None) -> str | None:
    """Choose it for models of its architecture that have its tags."""
    if architecture.startswith("Ernie4_5") and "<tool_call>" in (chat_template or ""):
        return "ernie45"
    return None
