"""/v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from octavo.inputs import Conversation, RequestOptions
from octavo.inputs.media_parts import has_media
from octavo.outputs import RequestOutput
from octavo.params import LoRARequest, SamplingParams
from octavo.server.apis.chat.answer import ChatAnswer
from octavo.server.apis.chat.body import CHAT_FIELDS, BatchChatRequest, ChatCompletion, ChatRequest
from octavo.server.context import ServerContext
from octavo.server.http.errors import HttpError
from octavo.server.http.exchange import EventStream, Exchange, Reply, encode
from octavo.server.http.openapi import operation
from octavo.server.protocol.beams import as_output, beam_params
from octavo.server.protocol.merging import final_output, final_outputs
from octavo.server.protocol.notes import Notes
from octavo.server.protocol.sampling import check_num_logprobs, checked_max_tokens
from octavo.server.protocol.tool_pairs import check_messages
from octavo.server.protocol.usage import check_stream_options
from octavo_registry.routes import Endpoint


class ChatRoutes:
    """Answers conversations."""

    def __init__(self, server: ServerContext) -> None:
        self._server = server

    def endpoints(self) -> Sequence[Endpoint]:
        """Return those for one conversation and for several."""
        one = operation(
            "Answer a conversation", request=ChatRequest, reply=ChatCompletion, streams=True
        )
        several = operation("Answer conversations", request=BatchChatRequest, reply=ChatCompletion)
        made = partial(self._server.endpoint, "POST", generates=True)
        return [
            made("/v1/chat/completions", self.create, one),
            made("/v1/chat/completions/batch", self._create_batch, several),
        ]

    async def create(self, exchange: Exchange) -> Reply | EventStream:
        """Answer one request."""
        notes = exchange.notes
        request = self._server.read(exchange, ChatRequest, CHAT_FIELDS)
        model, adapter = await self._server.check_model(request.model)
        params = self._params(request, notes)
        self._server.check_sequences(1, params)
        self._check_pairs(request)
        named = request.request_id or exchange.request_id
        answer = ChatAnswer(request, f"chatcmpl-{named}", model, params.n, self._server, notes)
        await self._server.checked_template(request.chat_template)
        if request.use_beam_search:
            found = await self._beams(request, params, adapter, notes)
            return Reply(encode(answer.whole(found)))
        outputs = self._begin(request, params, adapter, notes, request.options())
        if request.stream:
            return EventStream(answer.events(outputs))
        return Reply(encode(answer.whole(await final_output(outputs))))

    async def _create_batch(self, exchange: Exchange) -> Reply:
        """Answer several conversations with the same parameters."""
        notes = exchange.notes
        batch = self._server.read(exchange, BatchChatRequest, CHAT_FIELDS)
        model, adapter = await self._server.check_model(batch.model)
        for name in ("stream", "tools", "functions", "use_beam_search"):
            if getattr(batch, name):
                raise HttpError(400, f"a batch takes no {name}", param=name)
        if batch.n not in (msgspec.UNSET, 1):
            raise HttpError(400, "a batch has one answer to each conversation", param="n")
        if not batch.messages:
            raise HttpError(400, "messages is an empty list", param="messages")
        params = self._params(batch, notes)
        self._server.check_sequences(len(batch.messages), params)
        requests = list(batch.requests())
        for each in requests:
            self._check_pairs(each)
        named = batch.request_id or exchange.request_id
        answer = ChatAnswer(batch, f"chatcmpl-{named}", model, 1, self._server, notes)
        await self._server.checked_template(batch.chat_template)
        outputs = []
        for index, each in enumerate(requests):
            options = replace(each.options(), request_id=f"{named}-{index}")
            outputs.append(self._begin(each, params, adapter, notes, options))
        return Reply(encode(answer.batch(await final_outputs(outputs))))

    def _check_pairs(self, request: ChatRequest) -> None:
        if not self._server.config.serve.allow_unpaired_tool_calls:
            check_messages(request.messages, is_continued=request.continue_final_message)

    async def _beams(
        self,
        request: ChatRequest,
        params: SamplingParams,
        adapter: LoRARequest | None,
        notes: Notes,
    ) -> RequestOutput:
        wanted = beam_params(
            request,
            max_tokens=params.max_tokens or self._server.engine.max_model_len,
            notes=notes,
            others={"logprobs": request.logprobs},
        )
        conversation = self._conversation(request, notes)
        if has_media(conversation.messages, self._server.modalities):
            raise HttpError(400, "a beam search takes texts alone", param="use_beam_search")
        options = request.options()
        found = await self._server.engine.chat_beams(conversation, wanted, options, adapter)
        return as_output(found, options.request_id, None)

    def _begin(
        self,
        request: ChatRequest,
        params: SamplingParams,
        adapter: LoRARequest | None,
        notes: Notes,
        options: RequestOptions,
    ) -> AsyncGenerator[RequestOutput, None]:
        conversation = self._conversation(request, notes)
        return self._server.engine.answer(conversation, params, options, adapter)

    def _conversation(self, request: ChatRequest, notes: Notes) -> Conversation:
        kwargs = self._template_kwargs(request, notes)
        return request.conversation(notes, kwargs, self._server.modalities)

    def _params(self, request: ChatRequest, notes: Notes) -> SamplingParams:
        request.check_beams()
        check_num_logprobs("top_logprobs", request.top_logprobs, self._server.max_logprobs)
        if request.top_logprobs and not request.logprobs:
            raise HttpError(400, "top_logprobs needs logprobs=true", param="top_logprobs")
        context = self._server.engine.max_model_len
        more: dict[str, Any] = {}
        for name in ("max_tokens", "max_completion_tokens"):
            if getattr(request, name) is not None:
                more["max_tokens"] = checked_max_tokens(name, getattr(request, name), context)
        if request.logprobs:
            more["logprobs"] = request.top_logprobs
        check_stream_options(request.stream_options, notes, is_stream=request.stream)
        default = self._server.default_params(max_tokens=None)
        return request.params(default, room=context, **more)

    def _template_kwargs(self, request: ChatRequest, notes: Notes) -> dict[str, Any]:
        effort = self._server.effort_kwargs(
            "reasoning_effort", request.reasoning_effort, notes, request.chat_template
        )
        given = self._server.template_kwargs(
            request.chat_template_kwargs, notes, request.chat_template
        )
        return given | effort
