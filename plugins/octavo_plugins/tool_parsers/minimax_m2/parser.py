"""``<invoke name="NAME"><parameter name="KEY">VALUE</parameter></invoke>`` between tags."""

from __future__ import annotations

from octavo_plugins.tool_parsers.elements import ElementParser, Elements
from octavo_plugins.tool_parsers.tagged_calls import CallTags


class MinimaxM2Parser(ElementParser):
    """The tool calls of MiniMax M2: all of a message stand between one pair of tags."""

    samples = (
        '<minimax:tool_call>\n<invoke name="get_weather">\n'
        '<parameter name="city">Paris</parameter>\n</invoke>\n</minimax:tool_call>',
        'Let me search.\n<minimax:tool_call>\n<invoke name="search_web">\n'
        '<parameter name="query_tag">["technology", "events"]</parameter>\n'
        '<parameter name="query_list">["\\"OpenAI\\" \\"latest\\""]</parameter>\n</invoke>\n'
        '<invoke name="now">\n</invoke>\n</minimax:tool_call>',
    )
    markers = ("<minimax:tool_call>", "</minimax:tool_call>")
    tags = Elements(
        around=CallTags(
            call='<invoke name="',
            opening=("<minimax:tool_call>",),
            closing=("</minimax:tool_call>",),
        ),
        parameter='<parameter name="',
        name_end='">',
        parameter_end="</parameter>",
        call_end="</invoke>",
        unclosed=('\n<parameter name="', "\n</invoke>"),
        before_all="<minimax:tool_call>\n",
        after_all="\n</minimax:tool_call>",
    )
