"""/v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

import msgspec

from octavo.inputs import Conversation, RequestOptions
from octavo.params import SamplingParams
from octavo.server.apis.messages.answer import MessageAnswer
from octavo.server.apis.messages.body import (
    COUNT_FIELDS,
    MESSAGE_FIELDS,
    CountRequest,
    Message,
    MessageRequest,
    TokenCount,
    answer_form,
    check_thread,
    note_hints,
)
from octavo.server.context import ServerContext
from octavo.server.http.dialects import ANTHROPIC
from octavo.server.http.errors import ErrorReply
from octavo.server.http.exchange import EventStream, Exchange, Reply, encode, named_event
from octavo.server.http.openapi import operation
from octavo.server.protocol.merging import final_output
from octavo.server.protocol.notes import Notes, told
from octavo.server.protocol.sampling import checked_max_tokens
from octavo.server.protocol.tool_pairs import check_blocks
from octavo_registry.routes import Endpoint


class MessageRoutes:
    """Answers conversations in Anthropic's form."""

    def __init__(self, server: ServerContext) -> None:
        self._server = server

    def endpoints(self) -> Sequence[Endpoint]:
        """Return the endpoints that answer and that count."""
        answer = operation(
            "Answer a conversation (Anthropic)",
            request=MessageRequest,
            reply=Message,
            streams=True,
        )
        count = operation(
            "Count a conversation's tokens (Anthropic)", request=CountRequest, reply=TokenCount
        )
        return [
            self._server.endpoint("POST", "/v1/messages", self._create, answer, generates=True),
            self._server.endpoint("POST", "/v1/messages/count_tokens", self._count, count),
        ]

    async def _create(self, exchange: Exchange) -> Reply | EventStream:
        notes = exchange.notes
        request = self._server.read(exchange, MessageRequest, MESSAGE_FIELDS)
        model, adapter = await self._server.check_model(request.model)
        check_thread(request, notes)
        params = self._params(request)
        self._check_pairs(request)
        context = self._server.engine.max_model_len
        answer = MessageAnswer(request, f"msg_{exchange.request_id}", model, context, notes)
        options = RequestOptions(request_id=uuid4().hex)
        conversation = self._conversation(request, notes)
        outputs = self._server.engine.answer(conversation, params, options, adapter)
        if request.stream:
            return EventStream(answer.events(outputs), end=b"", failed=_failed)
        return Reply(encode(answer.whole(await final_output(outputs))))

    async def _count(self, exchange: Exchange) -> Reply:
        notes = exchange.notes
        request = self._server.read(exchange, CountRequest, COUNT_FIELDS)
        await self._server.check_model(request.model)
        self._check_pairs(request)
        ids = await self._server.engine.tokenize_chat(self._conversation(request, notes))
        return Reply(encode(TokenCount(len(ids), told(notes))))

    def _conversation(self, request: CountRequest, notes: Notes) -> Conversation:
        kwargs, template = self._template_kwargs(request, notes), self._server.engine.chat_template
        return request.conversation(notes, kwargs, self._server.modalities, template)

    def _check_pairs(self, request: CountRequest) -> None:
        if not self._server.config.serve.allow_unpaired_tool_calls:
            check_blocks(request.messages, is_continued=request.is_continued)

    def _template_kwargs(self, request: CountRequest, notes: Notes) -> dict[str, Any]:
        note_hints(request, notes)
        kwargs = self._server.template_kwargs(request.chat_template_kwargs, notes)
        if request.thinking is not None:
            kwargs |= self._server.thinking_kwargs(request.thinking.is_on, notes)
        effort = request.output_config.effort
        return kwargs | self._server.effort_kwargs("output_config.effort", effort, notes)

    def _params(self, request: MessageRequest) -> SamplingParams:
        context = self._server.engine.max_model_len
        given = {
            name: value
            for name in ("temperature", "top_p", "top_k")
            if (value := getattr(request, name)) is not msgspec.UNSET
        }
        return replace(
            self._server.default_params(max_tokens=None),
            max_tokens=checked_max_tokens("max_tokens", min(request.max_tokens, context), context),
            guided=answer_form(request),
            stop=request.stop_sequences,
            output_kind="delta" if request.stream else "final",
            **given,
        )


def _failed(error: ErrorReply) -> bytes:
    """The last event of a stream that breaks off."""
    return named_event("error", replace(error, dialect=ANTHROPIC).body())
