"""/invocations: the one path to which SageMaker sends what other routes take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from octavo.server.apis.chat.body import ChatCompletion, ChatRequest
from octavo.server.apis.chat.route import ChatRoutes
from octavo.server.apis.completions.body import Completion, CompletionRequest
from octavo.server.apis.completions.route import CompletionRoutes
from octavo.server.context import ServerContext
from octavo.server.http.errors import HttpError
from octavo.server.http.exchange import ANSWERED_AS, EventStream, Exchange, Reply
from octavo.server.http.openapi import operation
from octavo_registry.routes import Endpoint

_ADAPTER: Final = b"x-amzn-sagemaker-adapter-identifier"
"""The header that names an adapter, in place of the body's model."""


class InvocationRoutes:
    """Answers a body as the route does whose prompt it has."""

    def __init__(self, server: ServerContext) -> None:
        self._server = server
        self._routes = {
            "messages": ("/v1/chat/completions", ChatRoutes(server).create),
            "prompt": ("/v1/completions", CompletionRoutes(server).create),
        }

    def endpoints(self) -> Sequence[Endpoint]:
        """Return the one endpoint."""
        described = operation(
            "Answer a conversation or continue prompts, for SageMaker",
            request=(ChatRequest, CompletionRequest),
            reply=(ChatCompletion, Completion),
            streams=True,
        )
        return [
            self._server.endpoint("POST", "/invocations", self._answer, described, generates=True)
        ]

    async def _answer(self, exchange: Exchange) -> Reply | EventStream:
        scope, body = exchange.scope, exchange.body
        named = [name for name in self._routes if body.get(name) is not None]
        if len(named) != 1:
            raise HttpError(
                400,
                "give messages, for a conversation, or prompt, for texts to continue: one of them",
                param="messages",
            )
        adapter = dict(scope["headers"]).get(_ADAPTER)
        if adapter:  # an empty one names none
            body = {**body, "model": adapter.decode("latin-1")}
        scope[ANSWERED_AS], create = self._routes[named[0]]
        return await create(replace(exchange, body=body))
