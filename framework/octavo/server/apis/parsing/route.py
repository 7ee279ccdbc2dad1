"""/parse_tool_calls and /separate_reasoning: what a parser makes of a text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from octavo.errors import UnknownNameError
from octavo.frontend.async_requests import CompilingThreads
from octavo.server.apis.parsing.body import (
    PARSING_FIELDS,
    ParseCallsRequest,
    ParsedCalls,
    SeparatedReasoning,
    SeparateRequest,
)
from octavo.server.context import ServerContext
from octavo.server.http.errors import HttpError
from octavo.server.http.exchange import Exchange, Reply, encode
from octavo.server.http.openapi import operation
from octavo.server.protocol.conversation import plain_tools
from octavo.server.protocol.notes import told
from octavo.server.protocol.tool_calls import message_calls, readable_arguments
from octavo.tools import NamedReasoningParser, NamedToolParser
from octavo.tools.checked import CheckedReasoningParser, CheckedToolParser
from octavo.tools.choice import read_tool_use
from octavo_registry import LazyRegistry, ParsedMessage
from octavo_registry.routes import Endpoint

Parser = TypeVar("Parser")


class ParsingRoutes:
    """Shows what parsers do, in threads: a long text takes them a while."""

    def __init__(self, server: ServerContext) -> None:
        self._server = server
        self._threads = CompilingThreads()

    def endpoints(self) -> Sequence[Endpoint]:
        """Return both endpoints."""
        calls = operation(
            "Find the tool calls in a text", request=ParseCallsRequest, reply=ParsedCalls
        )
        reasoning = operation(
            "Find the reasoning in a text", request=SeparateRequest, reply=SeparatedReasoning
        )
        return [
            self._server.endpoint("POST", "/parse_tool_calls", self._parse, calls),
            self._server.endpoint("POST", "/separate_reasoning", self._separate, reasoning),
        ]

    async def _parse(self, exchange: Exchange) -> Reply:
        request = self._server.read(exchange, ParseCallsRequest, PARSING_FIELDS)
        own = self._server.engine.answer_format.tool_parser
        registry = self._server.host.tool_parsers
        named = partial(CheckedToolParser, registry)
        use = read_tool_use(plain_tools(request.tools, exchange.notes), None, None)

        def made() -> ParsedMessage:
            parser = NamedToolParser(_chosen(request.parser, registry, own, named))
            return parser.parse(request.text, None if use is None else use.tools)

        message = await self._threads.run(made)
        calls = message_calls(message)
        for call in calls:
            call.function.arguments = readable_arguments(call.function.arguments)
        warnings = told(exchange.notes)
        return Reply(
            encode(ParsedCalls(content=message.content, tool_calls=calls, warnings=warnings))
        )

    async def _separate(self, exchange: Exchange) -> Reply:
        request = self._server.read(exchange, SeparateRequest, PARSING_FIELDS)
        own = self._server.engine.answer_format.reasoning_parser
        registry = self._server.host.reasoning_parsers
        named = partial(CheckedReasoningParser, registry)

        def made() -> ParsedMessage:
            parser = NamedReasoningParser(_chosen(request.parser, registry, own, named))
            return parser.parse(request.text, prompt=request.prompt)

        message = await self._threads.run(made)
        warnings = told(exchange.notes)
        return Reply(
            encode(
                SeparatedReasoning(
                    reasoning=message.reasoning,
                    content=message.content,
                    warnings=warnings,
                )
            )
        )


def _chosen(
    name: str | None,
    registry: LazyRegistry[Any],
    own: Parser | None,
    named: Callable[[str, None], Parser],
) -> Parser:
    """The parser of that name, or the model's own."""
    if name is not None:
        try:
            return named(name, None)
        except UnknownNameError as error:
            raise HttpError(400, str(error), param="parser") from None
    if own is None:
        raise HttpError(
            400, f"this model has none of its own; give parser: {', '.join(registry.names())}",
            param="parser",
        )  # fmt: skip
    return own
