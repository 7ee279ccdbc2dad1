"""The format of tool calls of Phi-4-mini."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, hookimpl

if TYPE_CHECKING:
    from octavo_registry import ToolParser

OCTAVO_API = "1"


@hookimpl
def register_tool_parsers(parsers: LazyRegistry[ToolParser]) -> None:
    """Add phi4_mini_json."""
    parsers.add("phi4_mini_json", "octavo_plugins.tool_parsers.phi4_mini.parser:Phi4MiniParser")


@hookimpl(trylast=True)
def select_tool_parser(chat_template: str | None) -> str | None:
    """Choose it for chat templates that ask for its marker or list tools as the model's does."""
    if chat_template and ("functools[" in chat_template or "<|/tool|>" in chat_template):
        return "phi4_mini_json"
    return None
