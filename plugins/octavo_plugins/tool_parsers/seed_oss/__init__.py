"""The tool calls of Seed-OSS."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, hookimpl

if TYPE_CHECKING:
    from octavo_registry import ToolParser

OCTAVO_API = "1"


@hookimpl
def register_tool_parsers(parsers: LazyRegistry[ToolParser]) -> None:
    """Add seed_oss."""
    parsers.add("seed_oss", "octavo_plugins.tool_parsers.seed_oss.parser:SeedOssParser")


@hookimpl(trylast=True)
def select_tool_parser(chat_template: str | None) -> str | None:
    """Choose it for chat templates that have its tags."""
    return "seed_oss" if chat_template and "<seed:tool_call>" in chat_template else None
