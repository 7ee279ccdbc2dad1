from __future__ import annotations

import logging
from functools import cache
from types import SimpleNamespace

import pytest

from octavo.config.engine import ModelConfig
from octavo.tools.answer_format import make_answer_format
from octavo.tools.checked import CheckedReasoningParser
from octavo_plugins.reasoning_parsers.tagged.parser import Qwen3Parser
from octavo_registry import PluginHost


@cache
def installed() -> PluginHost:
    return PluginHost.discover()


def chosen(architecture: str, chat_template: str | None) -> str | None:
    name: str | None = installed().hook.select_reasoning_parser(
        architecture=architecture, config={}, chat_template=chat_template
    )
    return name


CHOICES = (
    ("GptOssForCausalLM", "<|channel|>analysis", "openai"),
    ("Gemma4ForConditionalGeneration", "{{ '<|channel>thought\\n<channel|>' }}", "gemma4"),
    ("MistralForCausalLM", "[INST]{{ thought }}[THINK]", "mistral"),
    ("GraniteForCausalLM", "write 'Here is my thought process:' first", "granite"),
    ("DeepseekV3ForCausalLM", "<|im_assistant|>assistant<|im_middle|><think>", "kimi_k2"),
    ("MiniMaxM2ForCausalLM", "]~b]ai<think>\n<minimax:tool_call>", "minimax_m2"),
    ("Glm4MoeForCausalLM", "[gMASK]<sop><|assistant|>\n<think></think>", "glm45"),
    ("Qwen2ForCausalLM", "<｜Assistant｜><think>\n", "deepseek_r1"),
    ("DeepseekV3ForCausalLM", "{% if not thinking %}<｜Assistant｜></think>", "deepseek_v3"),
    ("DeepseekV32ForCausalLM", None, "deepseek_v3"),
    ("Qwen3ForCausalLM", "<|im_start|>assistant\n<think>\n\n</think>\n\n", "qwen3"),
)


@pytest.mark.parametrize(("architecture", "excerpt", "name"), CHOICES)
def test_a_parser_is_chosen_by_how_the_chat_template_marks_reasoning(
    architecture: str, excerpt: str | None, name: str
) -> None:
    assert chosen(architecture, excerpt) == name


@pytest.mark.parametrize(
    "chat_template", [None, "", "<|im_start|>assistant\n", "<｜Assistant｜>", "I think"]
)
def test_a_template_without_reasoning_leaves_it_in_the_text(chat_template: str | None) -> None:
    assert chosen("LlamaForCausalLM", chat_template) is None


def test_every_choice_is_registered_and_every_parser_is_chosen_for_some_template() -> None:
    # One name of two is chosen where a parser has two.
    registered = set(installed().reasoning_parsers.names()) - {"openai_gptoss"}
    assert {name for _, _, name in CHOICES} == registered


def test_auto_takes_what_the_template_shows_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    folder = SimpleNamespace(architecture="Qwen3ForCausalLM", config={})
    config = ModelConfig(model="m", reasoning_parser="auto")
    with caplog.at_level(logging.INFO):
        made, without = (
            make_answer_format(config, folder, None, installed(), chat_template=template)
            for template in ("<|im_start|><think>", "<|im_start|>")
        )
    assert isinstance(made.reasoning_parser, CheckedReasoningParser)
    assert isinstance(made.reasoning_parser.inner, Qwen3Parser)
    assert without.reasoning_parser is None
    assert "reasoning_parser=auto: qwen3" in caplog.text
    assert "reasoning_parser=auto: none" in caplog.text
