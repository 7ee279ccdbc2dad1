"""``<steptml:invoke name="NAME">`` with its parameters, between special tokens."""

from __future__ import annotations

from octavo_plugins.tool_parsers.elements import ElementParser, Elements
from octavo_plugins.tool_parsers.tagged_calls import CallTags

CALLS_BEGIN = "<｜tool_calls_begin｜>"
CALLS_END = "<｜tool_calls_end｜>"
CALL_BEGIN = "<｜tool_call_begin｜>"
CALL_END = "<｜tool_call_end｜>"
SEPARATOR = "<｜tool_sep｜>"


class Step3Parser(ElementParser):
    """The tool calls of Step 3. A call's kind, and perhaps its name, stands before the element."""

    samples = (
        f'{CALLS_BEGIN}{CALL_BEGIN}function{SEPARATOR}<steptml:invoke name="get_weather">'
        '<steptml:parameter name="city">Tokyo</steptml:parameter></steptml:invoke>'
        f"{CALL_END}{CALLS_END}",
        f'I will.\n{CALLS_BEGIN}{CALL_BEGIN}function{SEPARATOR}<steptml:invoke name="now">'
        f"</steptml:invoke>{CALL_END}{CALL_BEGIN}function{SEPARATOR}edit\n"
        '<steptml:invoke name="edit">\n'
        '<steptml:parameter name="text">  if a < b:</steptml:parameter>\n'
        f"</steptml:invoke>{CALL_END}{CALLS_END} Done.",
    )
    markers = (CALLS_BEGIN, CALLS_END, CALL_BEGIN, CALL_END, SEPARATOR)
    tags = Elements(
        around=CallTags(
            call='<steptml:invoke name="',
            opening=(CALLS_BEGIN, CALL_BEGIN, SEPARATOR),
            closing=(CALL_END, CALLS_END),
            between=r"[\w\s\-]",
        ),
        parameter='<steptml:parameter name="',
        name_end='">',
        parameter_end="</steptml:parameter>",
        call_end="</steptml:invoke>",
        unclosed=('<steptml:parameter name="', "</steptml:invoke>"),
        before_all=CALLS_BEGIN,
        before_each=f"{CALL_BEGIN}function{SEPARATOR}",
        after_each=CALL_END,
        after_all=CALLS_END,
        between_calls="",
        line_end="",
    )
