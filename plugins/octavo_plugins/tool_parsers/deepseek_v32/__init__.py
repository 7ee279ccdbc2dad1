"""The tool calls of DeepSeek V3.2 and V4."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, hookimpl

if TYPE_CHECKING:
    from octavo_registry import ToolParser

OCTAVO_API = "1"
_OF_ARCHITECTURE = {
    "DeepseekV32ForCausalLM": "deepseek_v32",
    "DeepseekV4ForCausalLM": "deepseek_v4",
}


@hookimpl
def register_tool_parsers(parsers: LazyRegistry[ToolParser]) -> None:
    """Add deepseek_v32 and deepseek_v4, which differ in a tag."""
    parsers.add("deepseek_v32", "octavo_plugins.tool_parsers.deepseek_v32.parser:DeepseekV32Parser")
    parsers.add("deepseek_v4", "octavo_plugins.tool_parsers.deepseek_v32.parser:DeepseekV4Parser")


@hookimpl(trylast=True)
def select_tool_parser(architecture: str, chat_template: str | None) -> str | None:
    """Choose it by the tags of the chat template, which DeepSeek itself does not give."""
    if chat_template is None:
        return _OF_ARCHITECTURE.get(architecture)
    if "｜DSML｜" in chat_template and "tool_calls>" in chat_template:
        return "deepseek_v4"
    has_tags = "｜DSML｜" in chat_template and "function_calls>" in chat_template
    return "deepseek_v32" if has_tags else None
