"""The tool calls of Kimi K2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from octavo_registry import LazyRegistry, hookimpl

if TYPE_CHECKING:
    from octavo_registry import ToolParser

OCTAVO_API = "1"


@hookimpl
def register_tool_parsers(parsers: LazyRegistry[ToolParser]) -> None:
    """Add kimi_k2."""
    parsers.add("kimi_k2", "octavo_plugins.tool_parsers.kimi_k2.parser:KimiK2Parser")


@hookimpl(trylast=True)
def select_tool_parser(config: Mapping[str, Any], chat_template: str | None) -> str | None:
    """Choose it for Kimi K2, and for chat templates that have its tokens."""
    if config.get("model_type") == "kimi_k2":
        return "kimi_k2"
    return "kimi_k2" if "<|tool_calls_section_begin|>" in (chat_template or "") else None
