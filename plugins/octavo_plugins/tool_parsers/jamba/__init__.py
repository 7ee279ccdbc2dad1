"""The Jamba format of tool calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, hookimpl

if TYPE_CHECKING:
    from octavo_registry import ToolParser

OCTAVO_API = "1"


@hookimpl
def register_tool_parsers(parsers: LazyRegistry[ToolParser]) -> None:
    """Add jamba."""
    parsers.add("jamba", "octavo_plugins.tool_parsers.jamba.parser:JambaParser")


@hookimpl(trylast=True)
def select_tool_parser(architecture: str, chat_template: str | None) -> str | None:
    """Choose it for models of its architecture that have its tags."""
    if architecture == "JambaForCausalLM" and "<tool_calls>" in (chat_template or ""):
        return "jamba"
    return None
