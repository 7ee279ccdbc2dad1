"""The tool calls of Step 3."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, hookimpl

if TYPE_CHECKING:
    from octavo_registry import ToolParser

OCTAVO_API = "1"


@hookimpl
def register_tool_parsers(parsers: LazyRegistry[ToolParser]) -> None:
    """Add step3."""
    parsers.add("step3", "octavo_plugins.tool_parsers.step3.parser:Step3Parser")


@hookimpl(trylast=True)
def select_tool_parser(architecture: str, chat_template: str | None) -> str | None:
    """Choose it for Step 3, whose chat template need not show how calls are written."""
    if architecture in ("Step3VLForConditionalGeneration", "Step3TextForCausalLM"):
        return "step3"
    return "step3" if "<steptml:invoke" in (chat_template or "") else None
