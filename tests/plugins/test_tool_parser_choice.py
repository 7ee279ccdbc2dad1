from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from octavo_registry import PluginHost


@cache
def installed() -> PluginHost:
    return PluginHost.discover()


def chosen(
    architecture: str, chat_template: str | None, config: dict[str, Any] | None = None
) -> str | None:
    name: str | None = installed().hook.select_tool_parser(
        architecture=architecture, config=config or {}, chat_template=chat_template
    )
    return name


@pytest.mark.parametrize(
    ("architecture", "excerpt", "name"),
    [
        ("Qwen2ForCausalLM", r"XML tags:\n<tool_call>\n{\"name\": <function-name>, ", "hermes"),
        ("Qwen3ForCausalLM", '{{- \'<tool_call>\\n{"name": "\' }}', "hermes"),
        ("Qwen3MoeForCausalLM", "{{- '\\n<tool_call>\\n<function=' + call.name }}", "qwen3_coder"),
        ("SeedOssForCausalLM", "{% set begin = '<seed:tool_call>' %}\\n<function=", "seed_oss"),
        ("MiniMaxM2ForCausalLM", "'<minimax:tool_call>' -%}<invoke name=", "minimax_m2"),
        ("MiniMaxM3ForCausalLM", "set ns = ']<]minimax[>['%}<invoke name=", "minimax_m3"),
        ("Glm4MoeForCausalLM", "<tool_call>{function-name}\n<arg_key>{arg-key-1}", "glm45"),
        ("Glm4MoeForCausalLM", "<tool_call>{function-name}<arg_key>{arg-key-1}", "glm47"),
        (
            "DeepseekV3ForCausalLM",
            "type + '<｜tool▁sep｜>' + name + '\\n```json\\n'",
            "deepseek_v3",
        ),
        ("DeepseekV3ForCausalLM", "name + '<｜tool▁sep｜>' + arguments", "deepseek_v31"),
        ("DeepseekV32ForCausalLM", None, "deepseek_v32"),
        ("DeepseekV32ForCausalLM", "<{{ dsml }}function_calls>{# ｜DSML｜ #}", "deepseek_v32"),
        ("DeepseekV32ForCausalLM", "name + '<｜tool▁sep｜>' + arguments", "deepseek_v31"),
        ("DeepseekV3ForCausalLM", "<|tool_calls_section_begin|>", "kimi_k2"),
        ("Step3VLForConditionalGeneration", "{{ messages }}", "step3"),
        ("Ernie4_5_MoeForCausalLM", '\'\\n<tool_call>\\n{"name": "\'', "ernie45"),
        ("MistralForCausalLM", '{{- "[TOOL_CALLS] [" }}', "mistral"),
        ("LlamaForCausalLM", '"parameters": dictionary of argument name', "llama3_json"),
        ("LlamaForCausalLM", "<|start_header_id|> [func_name1(params_name1=", "pythonic"),
        ("Llama4ForConditionalGeneration", "<|header_start|> [func_name1(", "llama4_pythonic"),
        ("GraniteForCausalLM", "<|start_of_role|>assistant<|tool_call|>", "granite"),
        ("GPTBigCodeForCausalLM", "<|function_call_library|>", "granite-20b-fc"),
        ("GraniteMoeHybridForCausalLM", '<|start_of_role|>\\n<tool_call>\\n{"name"', "granite4"),
        ("CohereForCausalLM", "<|START_RESPONSE|> <|START_ACTION|>[", "cohere_command3"),
        ("Cohere2ForCausalLM", "<|START_TEXT|> <|START_ACTION|>[", "cohere_command4"),
        ("ApertusForCausalLM", "<|tools_prefix|>[", "apertus"),
        ("DeepseekV4ForCausalLM", None, "deepseek_v4"),
        ("DeepseekV4ForCausalLM", "<{{ dsml }}tool_calls>{# ｜DSML｜ #}", "deepseek_v4"),
        ("DeepseekV3ForCausalLM", "function call<|role_sep|>\\n", "gigachat3"),
        ("HYV3ForCausalLM", "<tool_call>' + name + '<tool_sep>\\n<arg_key>", "hy_v3"),
        ("LagunaForCausalLM", "<tool_call>name\\n<arg_key>", "poolside_v1"),
        (
            "Llama4ForConditionalGeneration",
            "<|header_start|> dictionary of argument name",
            "llama4_json",
        ),
        ("MiMoV2FlashForCausalLM", "<tool_call>\\n<function=", "mimo"),
        ("Step3p5ForCausalLM", "<tool_call>\\n<function=", "step3p5"),
        ("LlamaForCausalLM", '<function name="f"><param name="k"></param>', "minicpm5"),
        ("Phi3ForCausalLM", "'<|tool|>' + message['tools'] + '<|/tool|>'", "phi4_mini_json"),
        ("InternLM2ForCausalLM", "<|im_start|>system name=<|plugin|>", "internlm"),
        ("JambaForCausalLM", "<tool_calls>[", "jamba"),
        ("HunYuanMoEV1ForCausalLM", "<tool_calls>[", "hunyuan_a13b"),
        ("Qwen2ForCausalLM", "developed by Salesforce xLAM team", "xlam"),
        ("LongcatFlashForCausalLM", "<longcat_tool_call>", "longcat"),
        ("GptOssForCausalLM", "<|channel|>commentary", "openai"),
        ("Gemma4ForConditionalGeneration", "<|tool_call>call:", "gemma4"),
        ("Gemma3ForCausalLM", "<start_function_call>call:", "functiongemma"),
        ("Lfm2ForCausalLM", "List of tools: <|tool_list_start|>[", "lfm2"),
        ("Olmo3ForCausalLM", "<function_calls></function_calls> XML tags", "olmo3"),
    ],
)
def test_a_parser_is_chosen_by_what_the_chat_template_writes(
    architecture: str, excerpt: str | None, name: str
) -> None:
    assert chosen(architecture, excerpt) == name


def test_kimi_k2_is_known_by_its_config_too() -> None:
    assert chosen("DeepseekV3ForCausalLM", "{{ messages }}", {"model_type": "kimi_k2"}) == "kimi_k2"


@pytest.mark.parametrize("chat_template", [None, "", "{% for m in messages %}{{ m.content }}"])
def test_a_template_without_tools_leaves_the_choice_open(chat_template: str | None) -> None:
    assert chosen("LlamaForCausalLM", chat_template) is None


def test_every_choice_is_a_registered_parser() -> None:
    names = installed().tool_parsers.names()
    table = test_a_parser_is_chosen_by_what_the_chat_template_writes.pytestmark[0].args[1]
    chosen_names = {name for _, _, name in table}
    assert chosen_names <= set(names)
    # One name of two is chosen where a parser has two.
    assert set(names) - chosen_names <= {"qwen3_xml"}
