"""The tool calls of Qwen3-Coder and Qwen 3.5, Step 3.5 and MiMo."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, hookimpl

if TYPE_CHECKING:
    from octavo_registry import ToolParser

OCTAVO_API = "1"


@hookimpl
def register_tool_parsers(parsers: LazyRegistry[ToolParser]) -> None:
    """Add qwen3_coder, also called qwen3_xml, and those that are written almost as it."""
    for name in ("qwen3_coder", "qwen3_xml"):
        parsers.add(name, "octavo_plugins.tool_parsers.qwen3_coder.parser:Qwen3CoderParser")
    parsers.add("step3p5", "octavo_plugins.tool_parsers.qwen3_coder.parser:Step3p5Parser")
    parsers.add("mimo", "octavo_plugins.tool_parsers.qwen3_coder.parser:MimoParser")


@hookimpl(trylast=True)
def select_tool_parser(architecture: str, chat_template: str | None) -> str | None:
    """Choose by the architecture, for chat templates that have the tags."""
    if chat_template and "<tool_call>" in chat_template and "<function=" in chat_template:
        if architecture.startswith("Step3p5"):
            return "step3p5"
        return "mimo" if architecture.startswith("MiMo") else "qwen3_coder"
    return None
