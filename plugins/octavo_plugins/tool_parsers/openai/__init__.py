"""The harmony format of gpt-oss: its channels hold reasoning, answers and calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, hookimpl

if TYPE_CHECKING:
    from octavo_registry import ReasoningParser, ToolParser

OCTAVO_API = "1"

_MODULE = "octavo_plugins.tool_parsers.openai.parser"


@hookimpl
def register_tool_parsers(parsers: LazyRegistry[ToolParser]) -> None:
    """Add openai."""
    parsers.add("openai", f"{_MODULE}:OpenAIToolParser")


@hookimpl
def register_reasoning_parsers(parsers: LazyRegistry[ReasoningParser]) -> None:
    """Add openai, which users of vLLM know as openai_gptoss."""
    parsers.add("openai", f"{_MODULE}:OpenAIReasoningParser")
    parsers.add("openai_gptoss", f"{_MODULE}:OpenAIReasoningParser")


@hookimpl(trylast=True)
def select_tool_parser(architecture: str) -> str | None:
    """Choose it for gpt-oss."""
    return "openai" if architecture == "GptOssForCausalLM" else None


@hookimpl(trylast=True)
def select_reasoning_parser(architecture: str) -> str | None:
    """Choose it for gpt-oss."""
    return "openai" if architecture == "GptOssForCausalLM" else None
