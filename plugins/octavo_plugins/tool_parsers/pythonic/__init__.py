"""Tool calls written as Python: Llama 3.2 and 4, ToolACE, LFM2, Olmo 3."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, hookimpl

if TYPE_CHECKING:
    from octavo_registry import ToolParser

OCTAVO_API = "1"


@hookimpl
def register_tool_parsers(parsers: LazyRegistry[ToolParser]) -> None:
    """Add the formats, which differ in the tags around the calls."""
    module = "octavo_plugins.tool_parsers.pythonic.parser"
    parsers.add("pythonic", f"{module}:PythonicParser")
    parsers.add("llama4_pythonic", f"{module}:Llama4PythonicParser")
    parsers.add("lfm2", f"{module}:Lfm2Parser")
    parsers.add("olmo3", f"{module}:Olmo3Parser")


@hookimpl(trylast=True)
def select_tool_parser(chat_template: str | None) -> str | None:
    """Choose by the tags of the chat template, or by the list of calls that it asks for."""
    if not chat_template:
        return None
    if "<|tool_call_start|>" in chat_template or "<|tool_list_start|>" in chat_template:
        return "lfm2"
    if "<function_calls>" in chat_template:
        return "olmo3"
    if "[func_name1(" in chat_template:
        return "llama4_pythonic" if "<|header_start|>" in chat_template else "pythonic"
    return None
