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


_OWN_MARKS = {
    "<|channel>": "gemma4",
    "[THINK]": "mistral",
    "Here is my thought process:": "granite",
}
_WITH_THINK_TAGS = {
    "<|im_assistant|>": "kimi_k2",
    "<minimax:tool_call>": "minimax_m2",
    "[gMASK]": "glm45",
    "<｜Assistant｜>": "deepseek_r1",
    "<|im_start|>": "qwen3",
}
"""What else the templates of models have that reason between these tags."""


@hookimpl(trylast=True)
def select_reasoning_parser(architecture: str, chat_template: str | None) -> str | None:
    """Choose by the tags of the chat template."""
    if chat_template is None:  # DeepSeek itself gives none
        return "deepseek_v3" if architecture == "DeepseekV32ForCausalLM" else None
    marks = _OWN_MARKS if "think>" not in chat_template else {**_OWN_MARKS, **_WITH_THINK_TAGS}
    name = next((name for mark, name in marks.items() if mark in chat_template), None)
    if name == "deepseek_r1" and "thinking" in chat_template:  # the switch of V3.1 and V3.2
        return "deepseek_v3"
    return name
