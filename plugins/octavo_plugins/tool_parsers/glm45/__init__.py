"""The tool calls of GLM 4.5 and later, Hunyuan 3 and Laguna."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, hookimpl

if TYPE_CHECKING:
    from octavo_registry import ToolParser

OCTAVO_API = "1"


@hookimpl
def register_tool_parsers(parsers: LazyRegistry[ToolParser]) -> None:
    """Add those whose chat templates differ in their line breaks and tags."""
    parsers.add("glm45", "octavo_plugins.tool_parsers.glm45.parser:Glm45Parser")
    parsers.add("glm47", "octavo_plugins.tool_parsers.glm45.parser:Glm47Parser")
    parsers.add("hy_v3", "octavo_plugins.tool_parsers.glm45.parser:HyV3Parser")
    parsers.add("poolside_v1", "octavo_plugins.tool_parsers.glm45.parser:PoolsideV1Parser")


@hookimpl(trylast=True)
def select_tool_parser(architecture: str, chat_template: str | None) -> str | None:
    """Choose by the tags and line breaks that the chat template asks for."""
    if not chat_template or "<arg_key>" not in chat_template:
        return None
    if "<tool_sep>" in chat_template:
        return "hy_v3"
    if architecture.startswith("Laguna"):
        return "poolside_v1"
    return "glm47" if "{function-name}<arg_key>" in chat_template else "glm45"
