"""DSML: ``<｜DSML｜invoke name="NAME">`` with a parameter that says whether it is a string."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from octavo.tools import Reading
from octavo.tools.forms import Function
from octavo.tools.loose_values import json_text
from octavo.tools.parameters import STRING, ArgumentsWriter, ToolTypes, parameter_types
from octavo_plugins.tool_parsers.elements import ElementParser, Elements
from octavo_plugins.tool_parsers.tagged_calls import CallTags

IS_STRING = '" string="true">'
IS_JSON = '" string="false">'


class DeepseekV32Parser(ElementParser):
    """The tool calls of DeepSeek V3.2."""

    samples: Sequence[str] = (
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n'
        '<｜DSML｜parameter name="city" string="true">杭州</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        'Both, then.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="search">\n'
        '<｜DSML｜parameter name="query" string="true">a "b" <c></｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="options" string="false">{"safe": [true]}</｜DSML｜parameter>\n'
        '</｜DSML｜invoke>\n<｜DSML｜invoke name="now">\n</｜DSML｜invoke>\n'
        "</｜DSML｜function_calls>",
    )
    markers = ("｜DSML｜",)
    tags = Elements(
        around=CallTags(
            call='<｜DSML｜invoke name="',
            opening=("<｜DSML｜function_calls>",),
            closing=("</｜DSML｜function_calls>",),
        ),
        parameter='<｜DSML｜parameter name="',
        name_end='">',
        key_ends=(IS_STRING, IS_JSON),
        parameter_end="</｜DSML｜parameter>",
        call_end="</｜DSML｜invoke>",
        unclosed=('<｜DSML｜parameter name="', "</｜DSML｜invoke>"),
        before_all="<｜DSML｜function_calls>\n",
        after_all="\n</｜DSML｜function_calls>",
    )

    def key_end(self, function: Function, key: str) -> str:
        """Return the attribute that says what the value is."""
        types = parameter_types(function.parameters, key)
        return IS_STRING if "string" in (types or STRING) else IS_JSON

    def value_types(self, declared: frozenset[str], key_end: str | None) -> frozenset[str]:
        """Return the schema's types, less what the attribute rules out; without any its word."""
        if key_end == IS_JSON:
            return declared - STRING or declared
        return declared or STRING

    def read_parameter(
        self,
        arguments: ArgumentsWriter,
        types: ToolTypes,
        name: str,
        key: str,
        key_end: str | None,
    ) -> Reading[str | None]:
        """Read a parameter; all arguments in one, which the model writes at times, are taken out.

        That is so where it is called "arguments" or "input", which the tool doesn't know, stands
        alone, and has in it what the tool knows.
        """
        known = types.keys(name)
        if key not in ("arguments", "input") or key in known or not known or not arguments.is_empty:
            return (yield from super().read_parameter(arguments, types, name, key, key_end))
        text, ended, follows = yield from arguments.text()
        inside = json_text(text, frozenset({"object"}))
        alone = ended and follows != self.tags.parameter
        if alone and inside.startswith("{") and json.loads(inside).keys() <= known:
            arguments.write_all(inside)
            return follows
        arguments.key(key)
        arguments.write(text, ended, self.value_types(frozenset(), key_end))
        return follows


class DeepseekV4Parser(DeepseekV32Parser):
    """The tool calls of DeepSeek V4, with another tag around all of them."""

    samples = tuple(
        text.replace("function_calls>", "tool_calls>") for text in DeepseekV32Parser.samples
    )
    tags = replace(
        DeepseekV32Parser.tags,
        around=CallTags(
            call='<｜DSML｜invoke name="',
            opening=("<｜DSML｜tool_calls>",),
            closing=("</｜DSML｜tool_calls>",),
        ),
        before_all="<｜DSML｜tool_calls>\n",
        after_all="\n</｜DSML｜tool_calls>",
    )
