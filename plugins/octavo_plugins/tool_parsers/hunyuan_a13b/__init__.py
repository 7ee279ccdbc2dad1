"""The Hunyuan format of tool calls: Hunyuan-A13B."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, hookimpl

if TYPE_CHECKING:
    from octavo_registry import ToolParser

OCTAVO_API = "1"


@hookimpl
def register_tool_parsers(parsers: LazyRegistry[ToolParser]) -> None:
    """Add hunyuan_a13b."""
    parsers.add("hunyuan_a13b", "octavo_plugins.tool_parsers.hunyuan_a13b.parser:HunyuanA13bParser")


@hookimpl(trylast=True)
def select_tool_parser(architecture: str, chat_template: str | None) -> str | None:
    """Choose it for models of its architecture that have its tags."""
    if architecture.startswith("HunYuan") and "<tool_calls>" in (chat_template or ""):
        return "hunyuan_a13b"
    return None
