"""``<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from octavo_plugins.tool_parsers.elements import ElementParser, Elements
from octavo_plugins.tool_parsers.tagged_calls import CallTags


class Qwen3CoderParser(ElementParser):
    """The tool calls of Qwen3-Coder and Qwen 3.5; ``<tool_call>`` may be missing."""

    samples: Sequence[str] = (
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n"
        "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
        "I'll write it.\n\n<tool_call>\n<function=write>\n<parameter=path>\na.py\n</parameter>\n"
        "<parameter=content>\nif a < b:\n    print('</p>')\n\n</parameter>\n</function>\n"
        "</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
        "<function=search>\n<parameter=query>\nno closing tag\n<parameter=limit>\n5\n</parameter>\n"
        "</function>\n</tool_call>\nDone.",
    )
    markers = ("<tool_call>", "</tool_call>")
    tags = Elements(
        around=CallTags(
            call="<function=",
            opening=("<tool_call>",),
            closing=("</tool_call>",),
        ),
        parameter="<parameter=",
        name_end=">",
        parameter_end="</parameter>",
        call_end="</function>",
        on_own_line=True,
        unclosed=("\n<parameter=", "\n</function>"),
        before_each="<tool_call>\n",
        after_each="\n</tool_call>",
    )


class Step3p5Parser(Qwen3CoderParser):
    """The tool calls of Step 3.5 Flash, which are written in the same way."""


class MimoParser(Qwen3CoderParser):
    """The tool calls of MiMo V2, whose values stand on the line of their tags."""

    tags = replace(Qwen3CoderParser.tags, on_own_line=False)
    samples = (
        "<tool_call>\n<function=get_weather>\n<parameter=city>Paris</parameter>\n"
        "<parameter=days>3</parameter>\n</function>\n</tool_call>",
        "Both.\n<tool_call>\n<function=write>\n<parameter=text>if a < b:\n  c\n</parameter>\n"
        "</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
    )
