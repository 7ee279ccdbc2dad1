"""``<|action_start|><|plugin|>{"name": ..., "parameters": {...}}<|action_end|>``."""

from __future__ import annotations

from octavo.tools.json_parser import JsonCallParser


class InternlmParser(JsonCallParser):
    """The tool calls of InternLM 2 and 2.5: of its actions those for plugins."""

    opens = ("<|action_start|><|plugin|>",)
    closes = ("<|action_end|>",)
    markers = ("<|action_start|>", "<|plugin|>", "<|action_end|>")
    arguments_key = "parameters"
    before_each = "<|action_start|><|plugin|>\n"
    after_each = "<|action_end|>"
    between = "\n"
    samples = (
        "Sure, I will search for the weather.<|action_start|><|plugin|>\n"
        '{"name": "get_weather", "parameters": {"city": "上海"}}<|action_end|>',
        '<|action_start|><|plugin|>{"name": "now", "parameters": {}}<|action_end|>\n',
        "<|action_start|><|interpreter|>\nprint(1)<|action_end|>",
    )
