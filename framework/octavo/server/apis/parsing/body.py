"""The bodies of /parse_tool_calls and /separate_reasoning, both ways."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from octavo.server.protocol.fields import FieldTable
from octavo.server.protocol.tool_calls import MessageToolCall

PARSING_FIELDS: Final = FieldTable()


class ParseCallsRequest(msgspec.Struct, kw_only=True):
    """A text in which a model may have called tools."""

    text: str
    tools: list[dict[str, Any]] | None = None
    """Tools tell a parser the types of arguments, where the text does not."""
    parser: str | None = None
    """A registered tool parser's name; None: the model's."""


class ParsedCalls(msgspec.Struct, kw_only=True):
    """The text taken apart."""

    content: str | None
    tool_calls: list[MessageToolCall]
    warnings: list[str] | msgspec.UnsetType = msgspec.UNSET


class SeparateRequest(msgspec.Struct, kw_only=True):
    """A text in which a model may have reasoned."""

    text: str
    prompt: str | None = None
    """What the text goes on from: it may have begun the reasoning. None: the usual prompt."""
    parser: str | None = None
    """A registered reasoning parser's name; None: the model's."""


class SeparatedReasoning(msgspec.Struct, kw_only=True):
    """The text taken apart."""

    reasoning: str | None
    content: str | None
    warnings: list[str] | msgspec.UnsetType = msgspec.UNSET
