"""``<seed:tool_call><function=NAME><parameter=KEY>VALUE</parameter></function>...``."""

from __future__ import annotations

from octavo_plugins.tool_parsers.elements import ElementParser, Elements
from octavo_plugins.tool_parsers.tagged_calls import CallTags


class SeedOssParser(ElementParser):
    """The tool calls of Seed-OSS, whose values stand on the line of their tags."""

    samples = (
        "<seed:tool_call>\n<function=get_weather>\n"
        "<parameter=location>Barcelona, Spain</parameter>\n"
        "<parameter=unit>celsius</parameter>\n</function>\n</seed:tool_call>",
        "One moment.\n<seed:tool_call>\n<function=plan>\n<parameter=stops>['Rome', \"L'Aquila\"]"
        "</parameter>\n</function>\n</seed:tool_call>\n"
        "<seed:tool_call>\n<function=now>\n</function>\n</seed:tool_call>",
    )
    markers = ("<seed:tool_call>", "</seed:tool_call>")
    tags = Elements(
        around=CallTags(
            call="<function=",
            opening=("<seed:tool_call>",),
            closing=("</seed:tool_call>",),
        ),
        parameter="<parameter=",
        name_end=">",
        parameter_end="</parameter>",
        call_end="</function>",
        unclosed=("\n<parameter=", "\n</function>"),
        before_each="<seed:tool_call>\n",
        after_each="\n</seed:tool_call>",
    )
