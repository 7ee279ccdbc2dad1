"""/v1/chat/completions."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from octavo.outputs import CompletionOutput, RequestOutput
from octavo.params import SamplingParams
from octavo.server.context import ServerContext
from octavo.server.errors import HttpError
from octavo.server.exchange import EventStream, Exchange, Reply, encode, event
from octavo.server.merging import final_output
from octavo.server.openapi import operation
from octavo.server.protocol.chat import (
    CHAT_FIELDS,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    ChatRequest,
    chat_logprobs,
)
from octavo.server.protocol.conversation import plain_messages
from octavo.server.protocol.sampling import check_top_logprobs, checked_max_tokens
from octavo.server.protocol.usage import StreamOptions, UsageCount, check_stream_options
from octavo.server.routes.prompt_report import prompt_logprobs
from octavo_registry.routes import Endpoint


class ChatRoutes:
    """Answers conversations."""

    def __init__(self, server: ServerContext) -> None:
        self._server = server

    def endpoints(self) -> Sequence[Endpoint]:
        """Return the one endpoint."""
        described = operation(
            "Answer a conversation", request=ChatRequest, reply=ChatCompletion, streams=True
        )
        return [self._server.endpoint("POST", "/v1/chat/completions", self._create, described)]

    async def _create(self, exchange: Exchange) -> Reply | EventStream:
        request, warnings = self._server.read(exchange, ChatRequest, CHAT_FIELDS)
        model = self._server.check_model(request.model)
        params = self._params(request)
        self._server.check_sequences(1, params)
        named = request.request_id or exchange.request_id
        answer = _Answer(request, f"chatcmpl-{named}", model, self._server, warnings)
        outputs = self._server.engine.chat(
            plain_messages(request.messages),
            params,
            request_id=request.request_id,
            documents=request.documents,
            chat_template=self._server.checked_template(request.chat_template),
            chat_template_kwargs=self._template_kwargs(request),
            add_generation_prompt=request.add_generation_prompt,
            continue_final_message=request.continue_final_message,
            priority=request.priority,
            cache_salt=request.cache_salt,
            strict=True,
        )
        if request.stream:
            return EventStream(answer.events(outputs))
        return Reply(encode(answer.whole(await final_output(outputs))))

    def _params(self, request: ChatRequest) -> SamplingParams:
        if request.max_tokens is not None and request.max_completion_tokens is not None:
            raise HttpError(
                400, "max_tokens and max_completion_tokens mean the same; give one",
                param="max_completion_tokens",
            )  # fmt: skip
        check_top_logprobs(request.top_logprobs)
        if request.top_logprobs and not request.logprobs:
            raise HttpError(400, "top_logprobs needs logprobs=true", param="top_logprobs")
        context = self._server.engine.max_model_len
        more: dict[str, Any] = {"output_kind": "delta" if request.stream else "final"}
        for name in ("max_tokens", "max_completion_tokens"):
            if getattr(request, name) is not None:
                more["max_tokens"] = checked_max_tokens(name, getattr(request, name), context)
        if request.logprobs:
            more["logprobs"] = request.top_logprobs
        check_stream_options(request.stream_options, is_stream=request.stream)
        default = self._server.default_params(max_tokens=None)
        return request.params(default, room=context, **more)

    def _template_kwargs(self, request: ChatRequest) -> dict[str, Any]:
        kwargs = dict(request.chat_template_kwargs)
        if request.reasoning_effort is not None:
            kwargs |= self._server.effort_kwargs(
                "reasoning_effort", request.reasoning_effort, request.chat_template
            )
        return kwargs


class _Answer:
    """Makes the bodies of one answer."""

    def __init__(
        self, request: ChatRequest, id: str, model: str, server: ServerContext, warnings: Any
    ) -> None:
        self._request = request
        self._options = request.stream_options or StreamOptions()
        self._warnings = warnings
        self._usage = UsageCount()
        self._head: dict[str, Any] = {
            "id": id,
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": server.fingerprint,
        }

    def whole(self, output: RequestOutput) -> ChatCompletion:
        """The answer in one piece."""
        self._usage.add(output)
        with_ids = self._request.return_token_ids
        return ChatCompletion(
            **self._head,
            choices=[
                ChatChoice(
                    index=each.index,
                    message=ChatMessage(each.text),
                    logprobs=self._logprobs(each),
                    finish_reason=each.finish_reason,
                    stop_reason=each.stop_reason,
                    token_ids=each.token_ids if with_ids else msgspec.UNSET,
                )
                for each in output.outputs
            ],
            usage=self._usage.usage(),
            prompt_logprobs=self._prompt_report(output),
            prompt_token_ids=output.prompt_token_ids if with_ids else msgspec.UNSET,
            warnings=self._warnings,
        )

    async def events(self, outputs: AsyncIterator[RequestOutput]) -> AsyncIterator[bytes]:
        """The answer piece by piece; the first events name the role."""
        is_first = True
        async for output in outputs:
            self._usage.add(output)
            if is_first:
                is_first = False
                for event_bytes in self._first_events(output):
                    yield event_bytes
            news = [self._event(each) for each in output.outputs]
            if news:
                yield b"".join(news)
        if self._options.include_usage:
            yield event(ChatChunk(**self._head, choices=[], usage=self._usage.usage()))

    def _first_events(self, output: RequestOutput) -> list[bytes]:
        with_ids = self._request.return_token_ids
        n = self._request.n if self._request.n is not msgspec.UNSET else 1
        chunks = [
            ChatChunk(
                **self._head,
                choices=[ChatChunkChoice(index=index, delta=ChatDelta("", "assistant"))],
                usage=self._chunk_usage(),
            )
            for index in range(n)
        ]
        chunks[0].warnings = self._warnings
        if with_ids:
            chunks[0].prompt_token_ids = output.prompt_token_ids
        chunks[0].prompt_logprobs = self._prompt_report(output)
        return [event(chunk) for chunk in chunks]

    def _event(self, output: CompletionOutput) -> bytes:
        choice = ChatChunkChoice(
            index=output.index,
            delta=ChatDelta(content=output.text),
            logprobs=self._logprobs(output),
            finish_reason=output.finish_reason,
        )
        if output.finish_reason is not None:
            choice.stop_reason = output.stop_reason
        if self._request.return_token_ids:
            choice.token_ids = output.token_ids
        return event(ChatChunk(**self._head, choices=[choice], usage=self._chunk_usage()))

    def _chunk_usage(self) -> Any:
        """OpenAI writes null into all events but the last when usage is asked for."""
        if self._options.continuous_usage_stats:
            return self._usage.usage()
        return None if self._options.include_usage else msgspec.UNSET

    def _prompt_report(self, output: RequestOutput) -> Any:
        num_top = self._request.prompt_logprobs
        if num_top is msgspec.UNSET:
            return msgspec.UNSET
        return prompt_logprobs(output.prompt_logprobs or [], num_top)

    def _logprobs(self, output: CompletionOutput) -> ChatLogprobs | None:
        if not self._request.logprobs or output.logprobs is None:
            return None
        return chat_logprobs(
            output.logprobs,
            self._request.top_logprobs,
            as_ids=self._request.return_tokens_as_token_ids,
        )
