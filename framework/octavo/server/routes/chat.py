"""/v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from functools import partial
from typing import Any

import msgspec

from octavo.inputs.media_parts import has_media
from octavo.inputs.processor_kwargs import asked_by_request
from octavo.outputs import CompletionOutput, GuideReceipt, RequestOutput
from octavo.params import LoRARequest, SamplingParams
from octavo.server.context import ServerContext
from octavo.server.errors import HttpError
from octavo.server.exchange import EventStream, Exchange, Reply, encode, event
from octavo.server.merging import final_output, final_outputs
from octavo.server.openapi import operation
from octavo.server.protocol.beams import as_output, beam_params
from octavo.server.protocol.chat import (
    CHAT_FIELDS,
    BatchChatRequest,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatMessage,
    ChatRequest,
)
from octavo.server.protocol.conversation import plain_messages, plain_tool_choice, plain_tools
from octavo.server.protocol.functions import as_tool_choice, as_tools, with_tool_calls
from octavo.server.protocol.guided import receipt
from octavo.server.protocol.logprobs import ChatLogprobs, chat_logprobs, prompt_logprobs
from octavo.server.protocol.notes import Notes, told
from octavo.server.protocol.sampling import check_num_logprobs, checked_max_tokens
from octavo.server.protocol.tool_calls import ToolCallPiece, delta_fields, message_fields
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
        answer = _Answer(request, f"chatcmpl-{named}", model, params.n, self._server, notes)
        await self._server.checked_template(request.chat_template)
        if request.use_beam_search:
            found = await self._beams(request, params, adapter, notes)
            return Reply(encode(answer.whole(found)))
        outputs = self._begin(request, params, adapter, notes, request.request_id)
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
        answer = _Answer(batch, f"chatcmpl-{named}", model, 1, self._server, notes)
        await self._server.checked_template(batch.chat_template)
        outputs = [
            self._begin(each, params, adapter, notes, f"{named}-{index}")
            for index, each in enumerate(requests)
        ]
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
        conversation = self._conversation(request, adapter, notes)
        if has_media(conversation["messages"], self._server.modalities):
            raise HttpError(400, "a beam search takes texts alone", param="use_beam_search")
        found = await self._server.engine.chat_beams(
            **conversation, params=wanted, request_id=request.request_id
        )
        return as_output(found, request.request_id or "", None)

    def _begin(
        self,
        request: ChatRequest,
        params: SamplingParams,
        adapter: LoRARequest | None,
        notes: Notes,
        request_id: str | None,
    ) -> AsyncGenerator[RequestOutput, None]:
        conversation = self._conversation(request, adapter, notes)
        return self._server.engine.chat(
            **conversation, sampling_params=params, request_id=request_id
        )

    def _conversation(
        self, request: ChatRequest, adapter: LoRARequest | None, notes: Notes
    ) -> dict[str, Any]:
        """What the engine's ``chat`` takes, but for parameters and the id."""
        tools, choice, parallel = request.tools, request.tool_choice, request.parallel_tool_calls
        if request.functions is not None or request.function_call is not None:
            if tools is not None or choice is not None:
                raise HttpError(400, "functions are tools; give one of both", param="functions")
            tools, choice = as_tools(request.functions), as_tool_choice(request.function_call)
            parallel = False
        return {
            "messages": plain_messages(
                with_tool_calls(request.messages), notes, self._server.modalities
            ),
            "tools": plain_tools(tools, notes),
            "tool_choice": plain_tool_choice(choice, notes),
            "parallel_tool_calls": parallel,
            "documents": request.documents,
            "chat_template": request.chat_template,
            "chat_template_kwargs": self._template_kwargs(request, notes),
            "add_generation_prompt": request.add_generation_prompt,
            "continue_final_message": request.continue_final_message,
            "mm_processor_kwargs": asked_by_request(
                request.mm_processor_kwargs, request.media_io_kwargs
            ),
            "priority": request.priority,
            "cache_salt": request.cache_salt or "",
            "strict": True,
            "lora_request": adapter,
        }

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


class _Answer:
    """Makes the bodies of one answer."""

    def __init__(
        self,
        request: ChatRequest,
        id: str,
        model: str,
        n: int,
        server: ServerContext,
        notes: Notes,
    ) -> None:
        self._request = request
        self._n = n
        self._notes = notes
        self._calling: set[int] = set()
        """The answers that have calls."""
        self._usage = server.count_usage(request.stream_options)
        self._role = server.config.serve.response_role
        self._as_ids = server.as_token_ids(request.return_tokens_as_token_ids)
        self._head = server.head(id, model)
        self._receipt: GuideReceipt | msgspec.UnsetType = msgspec.UNSET

    def whole(self, output: RequestOutput) -> ChatCompletion:
        """The answer in one piece."""
        self._usage.add(output)
        with_ids = self._request.return_token_ids
        return ChatCompletion(
            **self._head,
            choices=self.choices(output),
            usage=self._usage.usage(),
            guided=receipt(output.guided),
            prompt_logprobs=prompt_logprobs(output, self._request.prompt_logprobs) or None,
            prompt_token_ids=output.prompt_token_ids if with_ids else None,
            warnings=told(self._notes),
        )

    def batch(self, outputs: Sequence[RequestOutput]) -> ChatCompletion:
        """One choice for each of several conversations."""
        choices = []
        for index, output in enumerate(outputs):
            self._usage.add(output)
            (choice,) = self.choices(output)
            choice.index = index
            choice.prompt_logprobs = prompt_logprobs(output, self._request.prompt_logprobs)
            if self._request.return_token_ids:
                choice.prompt_token_ids = output.prompt_token_ids
            choices.append(choice)
        return ChatCompletion(
            **self._head,
            choices=choices,
            usage=self._usage.usage(),
            guided=receipt(outputs[0].guided),
            warnings=told(self._notes),
        )

    def choices(self, output: RequestOutput) -> list[ChatChoice]:
        """The answers to one conversation."""
        return [
            ChatChoice(
                index=each.index,
                message=ChatMessage(**self._said(each), role=self._role),
                logprobs=self._logprobs(each),
                finish_reason=self._finish_reason(each),
                stop_reason=each.stop_reason,
                token_ids=each.token_ids if self._request.return_token_ids else None,
            )
            for each in output.outputs
        ]

    async def events(self, outputs: AsyncIterator[RequestOutput]) -> AsyncIterator[bytes]:
        """The answer piece by piece; the first events name the role."""
        is_first = True
        async for output in outputs:
            self._receipt = receipt(output.guided)
            if is_first:
                is_first = False
                self._usage.add_prompt(output)
                for event_bytes in self._first_events(output):
                    yield event_bytes
            self._usage.add(output)
            news = b"".join(e for each in output.outputs for e in self._events(each))
            if news:
                yield news
        if self._usage.has_own_event:
            yield event(ChatChunk(**self._head, choices=[], usage=self._usage.usage()))

    def _first_events(self, output: RequestOutput) -> list[bytes]:
        with_ids = self._request.return_token_ids
        has_tools = self._request.tools or self._request.functions
        content = None if has_tools else ""  # null may yet stay: a call has no content
        chunks = [
            ChatChunk(
                **self._head,
                choices=[ChatChunkChoice(index=index, delta=ChatDelta(content, self._role))],
                usage=self._usage.in_event(),
            )
            for index in range(self._n)
        ]
        chunks[0].warnings = told(self._notes)
        if with_ids:
            chunks[0].prompt_token_ids = output.prompt_token_ids
        chunks[0].prompt_logprobs = prompt_logprobs(output, self._request.prompt_logprobs)
        return [event(chunk) for chunk in chunks]

    def _events(self, output: CompletionOutput) -> list[bytes]:
        """One for each delta; the first tells of the tokens, the last of the end."""
        choices = [ChatChunkChoice(index=output.index, delta=d) for d in self._deltas(output)]
        logprobs = self._logprobs(output)
        with_ids = self._request.return_token_ids
        if not choices and (output.finished or logprobs or with_ids):
            choices = [ChatChunkChoice(index=output.index, delta=ChatDelta())]
        if choices:
            choices[0].logprobs = logprobs
            if with_ids:
                choices[0].token_ids = output.token_ids
            if output.finished:
                choices[-1].finish_reason = self._finish_reason(output)
                choices[-1].stop_reason = output.stop_reason
        usage = self._usage.in_event()
        chunks = [ChatChunk(**self._head, choices=[each], usage=usage) for each in choices]
        if chunks and output.finished:
            chunks[-1].guided = self._receipt
        return [event(chunk) for chunk in chunks]

    def _deltas(self, output: CompletionOutput) -> list[ChatDelta]:
        if output.deltas is None:
            return [ChatDelta(output.text)]
        with_reasoning = self._request.include_reasoning
        made = [delta_fields(each, with_reasoning=with_reasoning) for each in output.deltas]
        if any("tool_calls" in fields for fields in made):
            self._calling.add(output.index)
        return [ChatDelta(**self._in_form(fields)) for fields in made if fields]

    def _said(self, output: CompletionOutput) -> dict[str, Any]:
        """What a whole answer puts into the fields of the message."""
        if output.message is None:
            return {"content": output.text}
        if output.message.tool_calls:
            self._calling.add(output.index)
        fields = message_fields(output.message, with_reasoning=self._request.include_reasoning)
        return self._in_form(fields)

    def _in_form(self, fields: dict[str, Any]) -> dict[str, Any]:
        """The call of a tool as that of a function, where functions were given."""
        if not self._request.functions or "tool_calls" not in fields:
            return fields
        others = {name: value for name, value in fields.items() if name != "tool_calls"}
        call = fields["tool_calls"][0]
        if isinstance(call, ToolCallPiece) and call.index > 0:  # there is one call in this form
            return others
        return {**others, "function_call": call.function}

    def _finish_reason(self, output: CompletionOutput) -> str | None:
        """As OpenAI has it: "tool_calls", but "stop" where a function was asked for by its name."""
        choice, older = self._request.tool_choice, self._request.function_call
        named = isinstance(older, dict) or (
            isinstance(choice, dict) and choice.get("type") == "function"
        )
        if output.finish_reason == "stop" and output.index in self._calling and not named:
            return "function_call" if self._request.functions else "tool_calls"
        return output.finish_reason

    def _logprobs(self, output: CompletionOutput) -> ChatLogprobs | None:
        if not self._request.logprobs or output.logprobs is None:
            return None
        return chat_logprobs(
            output.logprobs,
            self._request.top_logprobs,
            as_ids=self._as_ids,
        )
