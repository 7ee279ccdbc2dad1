"""``<function name="NAME"><param name="KEY">VALUE</param></function>``."""

from __future__ import annotations

from octavo.tools import Reading
from octavo.tools.parameters import ArgumentsWriter, ToolTypes
from octavo_plugins.tool_parsers.elements import ElementParser, Elements
from octavo_plugins.tool_parsers.tagged_calls import CallTags

CDATA, CDATA_END = "<![CDATA[", "]]>"


class Minicpm5Parser(ElementParser):
    """The tool calls of MiniCPM5, whose values may stand in a CDATA section."""

    samples = (
        '<function name="get_weather"><param name="city">Paris</param></function>',
        'Both.\n<function name="write"><param name="text"><![CDATA[if a < b:\n  "c"]]></param>'
        '<param name="lines">2</param></function>\n<function name="now"></function>',
    )
    markers = ("<function", "</function>", "</param>")
    tags = Elements(
        around=CallTags(call='<function name="', closing=()),
        parameter='<param name="',
        name_end='">',
        parameter_end="</param>",
        call_end="</function>",
        unclosed=('<param name="', "</function>"),
        line_end="",
    )

    def read_parameter(
        self,
        arguments: ArgumentsWriter,
        types: ToolTypes,
        name: str,
        key: str,
        key_end: str | None,
    ) -> Reading[str | None]:
        """Read a parameter; the marks of a CDATA section are no part of the value."""
        arguments.key(key)
        text, ended, follows = yield from arguments.text()
        bare = text.strip()
        if ended and bare.startswith(CDATA) and bare.endswith(CDATA_END):
            text = bare[len(CDATA) : -len(CDATA_END)]
        arguments.write(text, ended, self.value_types(types.of(name, key), key_end))
        return follows
