"""The Mistral formats of tool calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, hookimpl

if TYPE_CHECKING:
    from octavo_registry import ToolParser

OCTAVO_API = "1"


@hookimpl
def register_tool_parsers(parsers: LazyRegistry[ToolParser]) -> None:
    """Add mistral."""
    parsers.add("mistral", "octavo_plugins.tool_parsers.mistral.parser:MistralParser")


@hookimpl(trylast=True)
def select_tool_parser(chat_template: str | None) -> str | None:
    """Choose it for chat templates that have its tags."""
    return "mistral" if chat_template and "[TOOL_CALLS]" in chat_template else None
