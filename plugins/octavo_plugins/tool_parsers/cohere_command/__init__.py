"""The tool calls of Cohere's Command models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, hookimpl

if TYPE_CHECKING:
    from octavo_registry import ToolParser

OCTAVO_API = "1"


@hookimpl
def register_tool_parsers(parsers: LazyRegistry[ToolParser]) -> None:
    """Add cohere_command3 and cohere_command4."""
    parsers.add(
        "cohere_command3", "octavo_plugins.tool_parsers.cohere_command.parser:CohereCommand3Parser"
    )
    parsers.add(
        "cohere_command4", "octavo_plugins.tool_parsers.cohere_command.parser:CohereCommand4Parser"
    )


@hookimpl(trylast=True)
def select_tool_parser(chat_template: str | None) -> str | None:
    """Choose by the tokens around the text of an answer."""
    if not chat_template or "<|START_ACTION|>" not in chat_template:
        return None
    return "cohere_command4" if "<|START_TEXT|>" in chat_template else "cohere_command3"
