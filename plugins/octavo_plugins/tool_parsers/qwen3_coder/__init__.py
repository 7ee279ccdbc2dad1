"""The tool calls of Qwen3-Coder and Qwen 3.5."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, hookimpl

if TYPE_CHECKING:
    from octavo_registry import ToolParser

OCTAVO_API = "1"


@hookimpl
def register_tool_parsers(parsers: LazyRegistry[ToolParser]) -> None:
    """Add qwen3_coder, which is also called qwen3_xml."""
    for name in ("qwen3_coder", "qwen3_xml"):
        parsers.add(name, "octavo_plugins.tool_parsers.qwen3_coder.parser:Qwen3CoderParser")


@hookimpl(trylast=True)
def select_tool_parser(chat_template: str | None) -> str | None:
    """Choose it for chat templates that have its tags."""
    if chat_template and "<tool_call>" in chat_template and "<function=" in chat_template:
        return "qwen3_coder"
    return None
