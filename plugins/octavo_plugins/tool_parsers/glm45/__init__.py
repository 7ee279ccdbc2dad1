"""The tool calls of GLM 4.5 and later."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, hookimpl

if TYPE_CHECKING:
    from octavo_registry import ToolParser

OCTAVO_API = "1"


@hookimpl
def register_tool_parsers(parsers: LazyRegistry[ToolParser]) -> None:
    """Add glm45 and glm47, whose chat templates differ in their line breaks."""
    parsers.add("glm45", "octavo_plugins.tool_parsers.glm45.parser:Glm45Parser")
    parsers.add("glm47", "octavo_plugins.tool_parsers.glm45.parser:Glm47Parser")


@hookimpl(trylast=True)
def select_tool_parser(chat_template: str | None) -> str | None:
    """Choose by the line breaks that the chat template asks for."""
    if not chat_template or "<arg_key>" not in chat_template:
        return None
    return "glm47" if "{function-name}<arg_key>" in chat_template else "glm45"
