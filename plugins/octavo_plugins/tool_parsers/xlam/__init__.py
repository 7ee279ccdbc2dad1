"""The xLAM format of tool calls: xLAM 1 and 2."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, hookimpl

if TYPE_CHECKING:
    from octavo_registry import ToolParser

OCTAVO_API = "1"


@hookimpl
def register_tool_parsers(parsers: LazyRegistry[ToolParser]) -> None:
    """Add xlam."""
    parsers.add("xlam", "octavo_plugins.tool_parsers.xlam.parser:XlamParser")


@hookimpl(trylast=True)
def select_tool_parser(chat_template: str | None) -> str | None:
    """Choose it for chat templates that name the model."""
    return "xlam" if chat_template and "xLAM" in chat_template else None
