"""Reasoning between tags, as most models write it, or between two sentences: Granite."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, hookimpl

if TYPE_CHECKING:
    from octavo_registry import ReasoningParser

OCTAVO_API = "1"


@hookimpl
def register_reasoning_parsers(parsers: LazyRegistry[ReasoningParser]) -> None:
    """Add the formats, which differ in their tags and in what prompts leave open."""
    module = "octavo_plugins.reasoning_parsers.tagged.parser"
    parsers.add("deepseek_r1", f"{module}:DeepSeekR1Parser")
    parsers.add("deepseek_v3", f"{module}:DeepSeekV3Parser")
    parsers.add("gemma4", f"{module}:Gemma4Parser")
    parsers.add("glm45", f"{module}:Glm45Parser")
    parsers.add("granite", f"{module}:GraniteParser")
    parsers.add("kimi_k2", f"{module}:KimiK2Parser")
    parsers.add("minimax_m2", f"{module}:MiniMaxM2Parser")
    parsers.add("mistral", f"{module}:MistralParser")
    parsers.add("qwen3", f"{module}:Qwen3Parser")
