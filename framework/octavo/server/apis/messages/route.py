"""/v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

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
    conversation,
    note_hints,
)
from octavo.server.apis.messages.tools import chat_tool_choice, chat_tools
from octavo.server.context import ServerContext
from octavo.server.http.dialects import ANTHROPIC
from octavo.server.http.errors import ErrorReply
from octavo.server.http.exchange import EventStream, Exchange, Reply, encode, named_event
from octavo.server.http.openapi import operation
from octavo.server.protocol.merging import final_output
from octavo.server.protocol.notes import Notes, told
from octavo.server.protocol.sampling import checked_max_tokens
from octavo.server.protocol.tool_pairs import check_blocks
from octavo.tools.choice import read_tool_use
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
        choice, parallel = chat_tool_choice(request.tool_choice, notes)
        outputs = self._server.engine.chat(
            self._conversation(request, notes),
            params,
            tools=chat_tools(request.tools, notes),
            tool_choice=choice,
            parallel_tool_calls=parallel,
            chat_template_kwargs=self._template_kwargs(request, notes),
            continue_final_message=_continues(request),
            strict=True,
            lora_request=adapter,
        )
        if request.stream:
            return EventStream(answer.events(outputs), end=b"", failed=_failed)
        return Reply(encode(answer.whole(await final_output(outputs))))

    async def _count(self, exchange: Exchange) -> Reply:
        notes = exchange.notes
        request = self._server.read(exchange, CountRequest, COUNT_FIELDS)
        await self._server.check_model(request.model)
        self._check_pairs(request)
        choice, parallel = chat_tool_choice(request.tool_choice, notes)
        use = read_tool_use(chat_tools(request.tools, notes), choice, parallel)
        ids = await self._server.engine.tokenize_chat(
            self._conversation(request, notes),
            tools=None if use is None else use.tools,
            chat_template_kwargs=self._template_kwargs(request, notes),
            continue_final_message=_continues(request),
            strict=True,
        )
        return Reply(encode(TokenCount(len(ids), told(notes))))

    def _conversation(self, request: CountRequest, notes: Notes) -> list[dict[str, Any]]:
        template = self._server.engine.chat_template
        return conversation(request, notes, template, self._server.modalities)

    def _check_pairs(self, request: CountRequest) -> None:
        if not self._server.config.serve.allow_unpaired_tool_calls:
            check_blocks(request.messages, is_continued=_continues(request))

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


def _continues(request: CountRequest) -> bool:
    """Whether the last message is the beginning of the answer."""
    return request.messages[-1].get("role") == "assistant" if request.messages else False


def _failed(error: ErrorReply) -> bytes:
    """The last event of a stream that breaks off."""
    return named_event("error", replace(error, dialect=ANTHROPIC).body())
