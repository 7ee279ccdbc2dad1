"""The tool calls of DeepSeek V3 and R1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, hookimpl

if TYPE_CHECKING:
    from octavo_registry import ToolParser

OCTAVO_API = "1"


@hookimpl
def register_tool_parsers(parsers: LazyRegistry[ToolParser]) -> None:
    """Add deepseek_v3."""
    parsers.add("deepseek_v3", "octavo_plugins.tool_parsers.deepseek_v3.parser:DeepseekV3Parser")


@hookimpl(trylast=True)
def select_tool_parser(chat_template: str | None) -> str | None:
    """Choose it for chat templates with its tokens and code blocks."""
    if chat_template and "<｜tool▁sep｜>" in chat_template and "```json" in chat_template:
        return "deepseek_v3"
    return None
