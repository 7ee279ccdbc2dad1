"""Calls in tags, as chat templates write them, for the tests of the parsers that read them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import strategies as st

from octavo_plugins.tool_parsers.deepseek_v32.parser import DeepseekV32Parser
from octavo_plugins.tool_parsers.glm45.parser import Glm45Parser, Glm47Parser
from octavo_plugins.tool_parsers.minimax_m2.parser import MinimaxM2Parser
from octavo_plugins.tool_parsers.minimax_m3.parser import MinimaxM3Parser
from octavo_plugins.tool_parsers.qwen3_coder.parser import Qwen3CoderParser
from octavo_plugins.tool_parsers.seed_oss.parser import SeedOssParser
from octavo_plugins.tool_parsers.step3.parser import Step3Parser
from octavo_registry import ToolDefinition, ToolParser
from tool_parsers import (
    NAMES,
    Call,
    Part,
    assert_cuts_do_not_matter,
    damaged,
    json_values,
    messages,
    parse,
    texts,
    tool,
)


def text_of(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def python_text_of(value: Any) -> str:
    """A value as ``value | string`` of a chat template gives it."""
    return value if isinstance(value, str) else repr(value)


# -- calls as the chat templates write them ------------------------------------------------------


def qwen3_coder(call: Call) -> str:
    parameters = "".join(
        f"<parameter={key}>\n{text_of(value) if isinstance(value, list | dict) else value}\n"
        "</parameter>\n"
        for key, value in call.arguments.items()
    )
    return f"<tool_call>\n<function={call.name}>\n{parameters}</function>\n</tool_call>"


def seed_oss(call: Call) -> str:
    parameters = "".join(
        f"<parameter={key}>{python_text_of(value)}</parameter>\n"
        for key, value in call.arguments.items()
    )
    return f"<seed:tool_call>\n<function={call.name}>\n{parameters}</function>\n</seed:tool_call>"


def minimax_m2(call: Call) -> str:
    parameters = "".join(
        f'<parameter name="{key}">{text_of(value)}</parameter>\n'
        for key, value in call.arguments.items()
    )
    return (
        f'<minimax:tool_call>\n<invoke name="{call.name}">\n{parameters}</invoke>\n'
        "</minimax:tool_call>"
    )


def minimax_m3(call: Call) -> str:
    mark = "]<]minimax[>["
    parameters = "".join(
        f"{mark}<{key}>{text_of(value)}{mark}</{key}>" for key, value in call.arguments.items()
    )
    return (
        f'{mark}<tool_call>\n{mark}<invoke name="{call.name}">{parameters}{mark}</invoke>\n'
        f"{mark}</tool_call>"
    )


def step3(call: Call) -> str:
    parameters = "".join(
        f'<steptml:parameter name="{key}">{text_of(value)}</steptml:parameter>'
        for key, value in call.arguments.items()
    )
    return (
        "<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜>"
        f'<steptml:invoke name="{call.name}">{parameters}</steptml:invoke>'
        "<｜tool_call_end｜><｜tool_calls_end｜>"
    )


def deepseek_v32(call: Call) -> str:
    parameters = "\n".join(
        f'<｜DSML｜parameter name="{key}" string="{str(isinstance(value, str)).lower()}">'
        f"{text_of(value)}</｜DSML｜parameter>"
        for key, value in call.arguments.items()
    )
    return (
        f'<｜DSML｜function_calls>\n<｜DSML｜invoke name="{call.name}">\n{parameters}\n'
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>"
    )


def glm45(call: Call, line_end: str = "\n") -> str:
    pairs = "".join(
        f"<arg_key>{key}</arg_key>{line_end}<arg_value>{text_of(value)}</arg_value>{line_end}"
        for key, value in call.arguments.items()
    )
    return f"<tool_call>{call.name}{line_end}{pairs}</tool_call>"


def glm47(call: Call) -> str:
    return glm45(call, line_end="")


@dataclass(frozen=True)
class Format:
    name: str
    parser: ToolParser
    render: Callable[[Call], str]
    begins: tuple[str, ...]
    """What content must not have."""
    ends: tuple[str, ...]
    """What a string must not have."""
    tags: tuple[str, ...] = field(default=())
    """What it may have."""

    @property
    def closing(self) -> str:
        """The tag that closes a value."""
        return next(tag for tag in self.ends if tag.startswith("</"))

    def text(self, parts: Sequence[Part]) -> str:
        return "".join(part if isinstance(part, str) else self.render(part) for part in parts)


FORMATS = (
    Format(
        "qwen3_coder",
        Qwen3CoderParser(),
        qwen3_coder,
        ("<tool_call>", "<function="),
        ("</parameter>", "\n<parameter=", "\n</function>"),
        ("<tool_call>", "</tool_call>", "<function=", "</function>", "<parameter=x>"),
    ),
    Format(
        "seed_oss",
        SeedOssParser(),
        seed_oss,
        ("<seed:tool_call>", "<function="),
        ("</parameter>", "\n<parameter=", "\n</function>"),
        ("<seed:tool_call>", "</seed:tool_call>", "</function>", "<parameter=x>"),
    ),
    Format(
        "minimax_m2",
        MinimaxM2Parser(),
        minimax_m2,
        ("<minimax:tool_call>", "<invoke name="),
        ("</parameter>", "\n<parameter name=", "\n</invoke>"),
        ("<minimax:tool_call>", "</minimax:tool_call>", "</invoke>", '<parameter name="x">'),
    ),
    Format(
        "minimax_m3",
        MinimaxM3Parser(),
        minimax_m3,
        ("]<]minimax[>[",),
        ("</text>", "]<]minimax[>["),
        ("]<]minimax[>[<tool_call>", "]<]minimax[>[</tool_call>", "]<]minimax[>[</invoke>"),
    ),
    Format(
        "step3",
        Step3Parser(),
        step3,
        ("<｜", "<steptml:invoke"),
        ("</steptml:parameter>", "<steptml:parameter name=", "</steptml:invoke>"),
        ("<｜tool_call_end｜>", "<｜tool_sep｜>", "<steptml:invoke>"),
    ),
    Format(
        "deepseek_v32",
        DeepseekV32Parser(),
        deepseek_v32,
        ("<｜DSML｜",),
        ("<｜DSML｜parameter name=", "</｜DSML｜parameter>", "</｜DSML｜invoke>"),
        ("<｜DSML｜function_calls>", "</｜DSML｜function_calls>", "｜DSML｜", '" string="true">'),
    ),
    Format(
        "glm45",
        Glm45Parser(),
        glm45,
        ("<tool_call>",),
        ("</arg_value>", "\n<arg_key>", "\n</tool_call>"),
        ("<tool_call>", "<arg_key>", "<arg_value>", "</arg_key>"),
    ),
    Format(
        "glm47",
        Glm47Parser(),
        glm47,
        ("<tool_call>",),
        ("</arg_value>", "\n<arg_key>", "\n</tool_call>"),
        ("<tool_call>", "<arg_key>", "<arg_value>", "</arg_key>"),
    ),
)
BY_NAME = {each.name: each for each in FORMATS}
formats = pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)

_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array"}


def tools_of(parts: Sequence[Part]) -> list[dict[str, Any]]:
    """Tools that admit these calls, each parameter with the type of its value."""
    return [
        tool(
            part.name,
            **{
                key: _TYPES.get(type(value), "null" if value is None else "object")
                for key, value in part.arguments.items()
            },
        )
        for part in parts
        if isinstance(part, Call)
    ]


def own_names(parts: Sequence[Part]) -> list[Part]:
    return [
        Call(f"{part.name}{number}", part.arguments) if isinstance(part, Call) else part
        for number, part in enumerate(parts)
    ]


def typed_messages(format: Format) -> st.SearchStrategy[list[Part]]:
    strings = texts(avoid=format.ends, tags=format.tags)
    arguments = st.dictionaries(NAMES, json_values(strings), max_size=3)
    return messages(avoid=format.begins, arguments=arguments).map(own_names)


def damaged_messages(format: Format) -> st.SearchStrategy[tuple[str, list[dict[str, Any]]]]:
    """Faulty texts, each with the tools that the whole one was for."""
    tags = (*format.begins, *format.ends)
    return typed_messages(format).flatmap(
        lambda parts: st.tuples(
            damaged(st.just(format.text(parts)), tags), st.just(tools_of(parts))
        )
    )


def calls_of(
    parser: ToolParser, text: str, tools: Sequence[ToolDefinition] | None = None
) -> list[tuple[str, Any]]:
    assert_cuts_do_not_matter(parser, text, tools)
    message = parse(parser, text, tools)
    return [(call.name, json.loads(call.arguments)) for call in message.tool_calls]
