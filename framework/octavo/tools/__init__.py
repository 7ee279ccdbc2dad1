"""Tool calls and reasoning in a model's text: parsers by name, and what they are made of."""

from octavo.tools.message import MessageStream
from octavo.tools.parsers import (
    NamedReasoningParser,
    NamedToolParser,
    get_reasoning_parser,
    get_tool_parser,
    parsed,
)
from octavo.tools.reader import Reader, Reading, ignore
from octavo.tools.stream import Stream

__all__ = [
    "MessageStream",
    "NamedReasoningParser",
    "NamedToolParser",
    "Reader",
    "Reading",
    "Stream",
    "get_reasoning_parser",
    "get_tool_parser",
    "ignore",
    "parsed",
]
