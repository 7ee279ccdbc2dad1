"""The InternLM format of tool calls: InternLM 2 and 2.5, Intern-S1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, hookimpl

if TYPE_CHECKING:
    from octavo_registry import ToolParser

OCTAVO_API = "1"


@hookimpl
def register_tool_parsers(parsers: LazyRegistry[ToolParser]) -> None:
    """Add internlm."""
    parsers.add("internlm", "octavo_plugins.tool_parsers.internlm.parser:InternlmParser")


@hookimpl(trylast=True)
def select_tool_parser(chat_template: str | None) -> str | None:
    """Choose it for chat templates that have its tags."""
    return "internlm" if chat_template and "<|plugin|>" in chat_template else None
