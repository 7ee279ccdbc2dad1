"""/v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from octavo.outputs import CompletionOutput, RequestOutput
from octavo.params import SamplingParams
from octavo.server.context import ServerContext
from octavo.server.dialects import ANTHROPIC
from octavo.server.errors import ErrorReply
from octavo.server.exchange import EventStream, Exchange, Reply, encode, named_event
from octavo.server.merging import final_output
from octavo.server.openapi import operation
from octavo.server.protocol.message_blocks import AnswerBlocks
from octavo.server.protocol.message_tools import chat_tool_choice, chat_tools
from octavo.server.protocol.messages import (
    COUNT_FIELDS,
    MESSAGE_FIELDS,
    CountRequest,
    Message,
    MessageRequest,
    MessageUsage,
    TokenCount,
    answer_form,
    check_thread,
    conversation,
    note_hints,
)
from octavo.server.protocol.notes import Notes, told
from octavo.server.protocol.sampling import checked_max_tokens
from octavo.server.protocol.tool_pairs import check_blocks
from octavo.server.protocol.usage import UsageCount
from octavo.tools.choice import read_tool_use
from octavo.wording import shown
from octavo_registry import Delta
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
        if not self._server.config.serve.allow_unpaired_tool_calls:
            check_blocks(request.messages, is_continued=_continues(request))
        context = self._server.engine.max_model_len
        answer = _Answer(request, f"msg_{exchange.request_id}", model, context, notes)
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


class _Answer:
    """Makes the bodies of one answer, whole or as events in Anthropic's order."""

    def __init__(
        self, request: MessageRequest, id: str, model: str, context: int, notes: Notes
    ) -> None:
        self._max_tokens = request.max_tokens
        self._context = context
        self._notes = notes
        self._count = UsageCount()
        self._blocks = AnswerBlocks()
        self._message = Message(
            id=id,
            model=model,
            content=[],
            usage=MessageUsage(input_tokens=0, cache_read_input_tokens=0, output_tokens=0),
        )

    def whole(self, output: RequestOutput) -> Message:
        """The answer in one piece."""
        self._add(output)
        self._note_room(output)
        (answer,) = output.outputs
        self._take(answer)
        self._blocks.end()
        self._message.content = self._blocks.blocks
        self._message.warnings = told(self._notes)
        self._end(answer)
        return self._message

    async def events(self, outputs: AsyncIterator[RequestOutput]) -> AsyncIterator[bytes]:
        """The answer piece by piece."""
        has_begun = False
        async for output in outputs:
            if not has_begun:
                has_begun = True
                self._note_room(output)
                self._add(replace(output, outputs=[]))
                yield self._begin()
            self._add(output)
            for each in output.outputs:
                news = b"".join(self._take(each))
                if news:
                    yield news
                if each.finish_reason is not None:
                    self._end(each)
        yield self._last()

    def _note_room(self, output: RequestOutput) -> None:
        room = self._context - len(output.prompt_token_ids)
        if self._max_tokens > room:
            cut = f"{shown(self._max_tokens)} is cut to the {room} that the context leaves"
            self._notes.add("max_tokens", cut)

    def _take(self, output: CompletionOutput) -> list[bytes]:
        """Add what an output, a piece or all of the answer, says; return the events of it."""
        deltas = [Delta(content=output.text)] if output.deltas is None else output.deltas
        return [event for delta in deltas for event in self._blocks.take(delta)]

    def _begin(self) -> bytes:
        self._message.warnings = told(self._notes)
        return b"".join(
            (
                named_event("message_start", {"message": self._message}),
                named_event("ping", {}),
            )
        )

    def _last(self) -> bytes:
        message = self._message
        delta = {"stop_reason": message.stop_reason, "stop_sequence": message.stop_sequence}
        return b"".join(
            (
                *self._blocks.end(),
                named_event("message_delta", {"delta": delta, "usage": message.usage}),
                named_event("message_stop", {}),
            )
        )

    def _add(self, output: RequestOutput) -> None:
        self._count.add(output)
        usage = self._count.usage()
        cached = usage.prompt_tokens_details.cached_tokens
        self._message.usage = MessageUsage(
            input_tokens=usage.prompt_tokens - cached,
            cache_read_input_tokens=cached,
            output_tokens=usage.completion_tokens,
        )

    def _end(self, output: CompletionOutput) -> None:
        message = self._message
        if isinstance(output.stop_reason, str):
            message.stop_reason, message.stop_sequence = "stop_sequence", output.stop_reason
        elif output.finish_reason != "length" and self._blocks.has_calls:
            message.stop_reason = "tool_use"
        elif output.finish_reason != "length":
            message.stop_reason = "end_turn"
        elif message.usage.output_tokens < self._max_tokens:
            message.stop_reason = "model_context_window_exceeded"
        else:
            message.stop_reason = "max_tokens"
