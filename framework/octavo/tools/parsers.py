"""Tool-call and reasoning parsers by name, for a whole text or for one that comes in pieces."""

from __future__ import annotations

from collections.abc import Sequence

from octavo_registry import (
    ParsedMessage,
    ParserStream,
    PluginHost,
    ReasoningParser,
    ToolDefinition,
    ToolParser,
)
from octavo_registry.tokenizer import Tokenizer


class NamedToolParser:
    """A tool parser of a plugin."""

    def __init__(self, parser: ToolParser) -> None:
        self.parser = parser

    def parse(self, text: str, tools: Sequence[ToolDefinition] | None = None) -> ParsedMessage:
        """Return content and calls of a whole message."""
        return parsed(self.stream(tools), text)

    def stream(self, tools: Sequence[ToolDefinition] | None = None) -> ParserStream:
        """Begin a message that comes in pieces."""
        return self.parser.stream(tools)


class NamedReasoningParser:
    """A reasoning parser of a plugin. What ``prompt`` is, `ReasoningParser.stream` says."""

    def __init__(self, parser: ReasoningParser) -> None:
        self.parser = parser

    def parse(
        self, text: str, tools: Sequence[ToolDefinition] | None = None, *, prompt: str | None = None
    ) -> ParsedMessage:
        """Return reasoning and content of a whole message."""
        return parsed(self.stream(tools, prompt=prompt), text)

    def stream(
        self, tools: Sequence[ToolDefinition] | None = None, *, prompt: str | None = None
    ) -> ParserStream:
        """Begin a message that comes in pieces."""
        return self.parser.stream(tools, prompt=prompt)


def parsed(stream: ParserStream, *pieces: str) -> ParsedMessage:
    """Return what a fresh stream makes of these pieces of text and their end."""
    deltas = [delta for piece in pieces for delta in stream.feed(piece)]
    return ParsedMessage.joined([*deltas, *stream.finish()])


def get_tool_parser(
    name: str, tokenizer: Tokenizer | None = None, *, host: PluginHost | None = None
) -> NamedToolParser:
    """Make the tool parser that a plugin registered as ``name``; ``host`` None: the installed ones.

    UnknownNameError lists near matches.
    """
    plugins = host or PluginHost.discover()
    return NamedToolParser(plugins.tool_parsers.make(name, tokenizer))


def get_reasoning_parser(
    name: str, tokenizer: Tokenizer | None = None, *, host: PluginHost | None = None
) -> NamedReasoningParser:
    """Make the reasoning parser that a plugin registered as ``name``, as `get_tool_parser` does."""
    plugins = host or PluginHost.discover()
    return NamedReasoningParser(plugins.reasoning_parsers.make(name, tokenizer))
