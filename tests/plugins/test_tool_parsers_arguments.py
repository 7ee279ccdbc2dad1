from __future__ import annotations

import json

import pytest

from octavo_registry import PluginHost
from tool_parsers import assert_cuts_do_not_matter, parse

HOST = PluginHost.discover()
TAGGED = '<tool_call>{"name": "f", "arguments": ARGS}</tool_call>'
ELEMENT = "<tool_call>\n<function=f>\nARGS\n</function>\n</tool_call>"
DEEPSEEK = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
COHERE = '<|START_ACTION|>[{"tool_name": "f", "parameters": ARGS}]<|END_ACTION|>'
HEADER = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>"
KIMI = "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>ARGS<|tool_call_end|>"

JSON_TEXTS = {
    "apertus": '<|tools_prefix|>[{"f": ARGS}]<|tools_suffix|>',
    "cohere_command3": COHERE,
    "cohere_command4": COHERE,
    "deepseek_v3": DEEPSEEK.format("function<｜tool▁sep｜>f\n```json\nARGS\n```"),
    "deepseek_v31": DEEPSEEK.format("f<｜tool▁sep｜>ARGS"),
    "ernie45": TAGGED,
    "gigachat3": 'function call<|role_sep|>\n{"name": "f", "arguments": ARGS}',
    "granite": '<|tool_call|>[{"name": "f", "arguments": ARGS}]',
    "granite-20b-fc": '<function_call> {"name": "f", "arguments": ARGS}',
    "granite4": TAGGED,
    "hermes": TAGGED,
    "hunyuan_a13b": '<tool_calls>[{"name": "f", "arguments": ARGS}]</tool_calls>',
    "internlm": '<|action_start|><|plugin|>{"name": "f", "parameters": ARGS}<|action_end|>',
    "jamba": '<tool_calls>[{"name": "f", "arguments": ARGS}]</tool_calls>',
    "kimi_k2": f"<|tool_calls_section_begin|>{KIMI}<|tool_calls_section_end|>",
    "lfm2": '<|tool_call_start|>[{"name": "f", "arguments": ARGS}]<|tool_call_end|>',
    "llama3_json": '{"name": "f", "parameters": ARGS}',
    "llama4_json": '{"name": "f", "parameters": ARGS}',
    "longcat": '<longcat_tool_call>{"name": "f", "arguments": ARGS}</longcat_tool_call>',
    "mistral": '[TOOL_CALLS] [{"name": "f", "arguments": ARGS}]',
    "openai": f"{HEADER}ARGS<|call|>",
    "phi4_mini_json": 'functools[{"name": "f", "arguments": ARGS}]',
    "xlam": '[{"name": "f", "arguments": ARGS}]',
}
"""A call of each format whose arguments are JSON."""
OTHER_TEXTS = {
    "deepseek_v32": '<｜DSML｜function_calls><｜DSML｜invoke name="f">ARGS</｜DSML｜invoke>',
    "deepseek_v4": '<｜DSML｜tool_calls><｜DSML｜invoke name="f">ARGS</｜DSML｜invoke>',
    "functiongemma": "<start_function_call>call:fARGS<end_function_call>",
    "gemma4": "<|tool_call>call:fARGS<tool_call|>",
    "glm45": "<tool_call>f\nARGS\n</tool_call>",
    "glm47": "<tool_call>fARGS (</tool_call>",
    "hy_v3": "<tool_calls><tool_call>f<tool_sep>ARGS</tool_call></tool_calls>",
    "llama4_pythonic": "[f(ARGS)]",
    "mimo": ELEMENT,
    "minicpm5": '<function name="f">ARGS</function>',
    "minimax_m2": '<minimax:tool_call><invoke name="f">ARGS</invoke></minimax:tool_call>',
    "minimax_m3": ']<]minimax[>[<tool_call>]<]minimax[>[<invoke name="f">ARGS',
    "olmo3": "<function_calls>\nf(ARGS)\n</function_calls>",
    "poolside_v1": "<tool_call>f\nARGS\n</tool_call>",
    "pythonic": "[f(ARGS)]",
    "qwen3_coder": ELEMENT,
    "qwen3_xml": ELEMENT,
    "seed_oss": "<seed:tool_call><function=f>ARGS</function></seed:tool_call>",
    "step3": "<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜>"
    '<steptml:invoke name="f">ARGS</steptml:invoke><｜tool_call_end｜><｜tool_calls_end｜>',
    "step3p5": ELEMENT,
}
"""A call of each other format, with something that is no parameter in the place of parameters."""
json_formats = pytest.mark.parametrize(("name", "text"), JSON_TEXTS.items(), ids=JSON_TEXTS)


def outcome(name: str, text: str) -> tuple[str | None, list[tuple[str, str]]]:
    parser = HOST.tool_parsers.load(name)(None)
    assert_cuts_do_not_matter(parser, text)
    message = parse(parser, text)
    return message.content, [(call.name, call.arguments) for call in message.tool_calls]


def test_the_tables_have_all_parsers() -> None:
    ours = (
        name
        for name in HOST.tool_parsers.names()
        if HOST.tool_parsers.info(name).target.startswith("octavo_plugins")
    )
    assert sorted({**JSON_TEXTS, **OTHER_TEXTS}) == sorted(ours)


@pytest.mark.parametrize(
    ("name", "text", "arguments"),
    [
        (name, text, arguments)
        for name, text in JSON_TEXTS.items()
        for arguments in (
            "nope",
            "{nope}",
            '"nope"',
            '"{nope}"',
            '"{\\n nope: \\"1\\"}"',
            '"{"',
            '[{"x": 1}]',
            "5",
            "true",
            "nullable",
        )
    ]
    + [(name, text, "nope") for name, text in OTHER_TEXTS.items()],
)
def test_what_is_no_object_of_arguments_stays_text(name: str, text: str, arguments: str) -> None:
    text = text.replace("ARGS", arguments)
    # The end of a message is no part of its text.
    assert outcome(name, text) == (text.removesuffix("<|call|>"), [])


@json_formats
def test_what_stays_text_hides_no_other_call(name: str, text: str) -> None:
    good = text.replace("ARGS", '{"x": 1}')
    bad = text.replace("ARGS", "nope")
    if name == "xlam":  # of which a bare array begins the message
        good = f"```json\n{good}\n```"
    if name == "openai":
        good = f"<|start|>assistant{good}"
    content, calls = outcome(name, bad + good)
    assert (content, calls) == (bad.removesuffix("<|call|>"), [("f", '{"x": 1}')])


@json_formats
@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ("{}", "{}"),
        ('{ \n"x": "}"}', '{ \n"x": "}"}'),
        ("null", "{}"),
        ('""', "{}"),
        ('"{\\"x\\": \\"\\\\n\\"}"', '{"x": "\\n"}'),
        ('" {\\n}"', " {\n}"),
    ],
)
def test_objects_and_the_objects_in_strings_are_arguments(
    name: str, text: str, written: str, arguments: str
) -> None:
    json.loads(arguments)
    assert outcome(name, text.replace("ARGS", written)) == (None, [("f", arguments)])


@json_formats
@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ("{", "{"),
        ("{ ", "{ "),
        ('{"x": "Bei', '{"x": "Bei'),
        ('"{', "{"),
        ('"{\\"x\\": [', '{"x": ['),
    ],
)
def test_what_the_end_of_the_text_cuts_off_stays_in_the_arguments(
    name: str, text: str, written: str, arguments: str
) -> None:
    assert outcome(name, text[: text.index("ARGS")] + written) == (None, [("f", arguments)])


def test_a_call_by_name_with_arguments_that_are_no_object_is_not_one_without() -> None:
    for text in (
        '<tool_call>{"name": "f", "arguments": "nope"}</tool_call>',
        '<tool_call>{"arguments": "nope", "name": "f"}</tool_call>',
    ):
        assert outcome("hermes", text) == (text, [])


@pytest.mark.parametrize("size", [1, 7, 10**6])
def test_a_name_that_makes_a_tag_may_be_of_any_length(size: int) -> None:
    mark, name = "]<]minimax[>[", "k" * 5000
    text = f'{mark}<tool_call>\n{mark}<invoke name="f">{mark}<{name}>v{mark}</{name}>{mark}'
    stream = HOST.tool_parsers.load("minimax_m3")(None).stream(None)
    deltas = [d for at in range(0, len(text), size) for d in stream.feed(text[at : at + size])]
    deltas += stream.finish()
    assert "".join(d.arguments or "" for d in deltas).startswith(f'{{"{name}": "v')
