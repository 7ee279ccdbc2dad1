"""The tool calls of DeepSeek V3.1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, hookimpl

if TYPE_CHECKING:
    from octavo_registry import ToolParser

OCTAVO_API = "1"


@hookimpl
def register_tool_parsers(parsers: LazyRegistry[ToolParser]) -> None:
    """Add deepseek_v31."""
    parsers.add("deepseek_v31", "octavo_plugins.tool_parsers.deepseek_v31.parser:DeepseekV31Parser")


@hookimpl(trylast=True)
def select_tool_parser(chat_template: str | None) -> str | None:
    """Choose it for chat templates with its tokens and no code blocks."""
    if chat_template and "<｜tool▁sep｜>" in chat_template and "```json" not in chat_template:
        return "deepseek_v31"
    return None
