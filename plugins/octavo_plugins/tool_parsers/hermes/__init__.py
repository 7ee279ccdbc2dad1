"""The Hermes format of tool calls: Hermes 2 Pro and 3, Qwen 2.5 and 3."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, hookimpl

if TYPE_CHECKING:
    from octavo_registry import ToolParser

OCTAVO_API = "1"


@hookimpl
def register_tool_parsers(parsers: LazyRegistry[ToolParser]) -> None:
    """Add hermes."""
    parsers.add("hermes", "octavo_plugins.tool_parsers.hermes.parser:HermesParser")


@hookimpl(trylast=True)
def select_tool_parser(architecture: str, chat_template: str | None) -> str | None:
    """Choose it for chat templates that have its tags and not those of another format."""
    others = ("<function=", "<arg_key>")
    if architecture.startswith("Ernie4_5") or not chat_template:
        return None
    if "<tool_call>" in chat_template and not any(tag in chat_template for tag in others):
        return "hermes"
    return None
