"""/v1/responses."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any
from uuid import uuid4

import msgspec

from octavo.inputs.processor_kwargs import asked_by_request
from octavo.outputs import CompletionOutput, GuideReceipt, RequestOutput, TokenLogprobs
from octavo.params import SamplingParams
from octavo.server.context import ServerContext
from octavo.server.errors import ErrorReply, HttpError, reply_to
from octavo.server.exchange import EventStream, Exchange, Reply, encode, named_event
from octavo.server.merging import final_output
from octavo.server.openapi import operation
from octavo.server.protocol.guided import receipt
from octavo.server.protocol.kept_responses import InputTokens
from octavo.server.protocol.logprobs import ChatLogprob, chat_logprobs
from octavo.server.protocol.notes import Notes, told
from octavo.server.protocol.response_items import AnswerItems
from octavo.server.protocol.response_tools import chat_tool_choice
from octavo.server.protocol.responses import (
    LOGPROBS,
    RESPONSE_FIELDS,
    InputTokensDetails,
    Response,
    ResponseRequest,
    ResponseUsage,
    ShownReasoning,
    check_metadata,
    note_hints,
)
from octavo.server.protocol.sampling import check_num_logprobs, checked_max_tokens
from octavo.server.protocol.tool_pairs import check_items
from octavo.server.protocol.usage import UsageCount, check_stream_options
from octavo.server.response_runs import Run
from octavo.server.response_store import IdTakenError, ResponseStore
from octavo.server.response_turn import Turn, read_turn
from octavo.tools.choice import read_tool_use
from octavo.tools.token_texts import TokenTexts
from octavo_registry import Delta
from octavo_registry.routes import Endpoint

log = logging.getLogger(__name__)


class ResponseRoutes:
    """Answers texts and conversations in OpenAI's newer form."""

    def __init__(self, server: ServerContext) -> None:
        self._server = server

    def endpoints(self) -> Sequence[Endpoint]:
        """Return the endpoints that answer and that count."""
        answer = operation(
            "Answer a text or a conversation", request=ResponseRequest, reply=Response, streams=True
        )
        count = operation("Count a request's tokens", request=ResponseRequest, reply=InputTokens)
        made = self._server.endpoint
        return [
            made("POST", "/v1/responses", self._create, answer, generates=True),
            made("POST", "/v1/responses/input_tokens", self._count, count),
        ]

    async def _create(self, exchange: Exchange) -> Reply | EventStream:
        server = self._server
        notes = exchange.notes
        request = server.read(exchange, ResponseRequest, RESPONSE_FIELDS)
        model, adapter = await server.check_model(request.model)
        check_metadata(request.metadata)
        params = self._params(request, notes)
        note_hints(request, notes)
        if exchange.body.get("store") and server.responses is None:
            notes.add("store", "has no effect: this server keeps no responses")
        turn = await read_turn(server, exchange.owner, request, notes)
        if not server.config.serve.allow_unpaired_tool_calls:
            check_items(turn.messages)
        choice = chat_tool_choice(request.tool_choice, notes)
        template_kwargs = self._template_kwargs(request, notes)
        answer = _Answer(request, model, params, notes, turn, server.responses)
        outputs = server.engine.chat(
            turn.messages,
            params,
            tools=turn.tools.functions or None,
            tool_choice=choice,
            parallel_tool_calls=request.parallel_tool_calls,
            request_id=request.request_id,
            chat_template_kwargs=template_kwargs,
            mm_processor_kwargs=asked_by_request(
                request.mm_processor_kwargs, request.media_io_kwargs
            ),
            priority=request.priority,
            cache_salt=request.cache_salt or "",
            strict=True,
            lora_request=adapter,
        )
        if request.background:
            return await self._in_background(request, turn, answer, outputs)
        if request.stream:
            return EventStream(answer.events(outputs), end=b"", failed=answer.failed)
        return Reply(await answer.whole(await final_output(outputs)))

    async def _in_background(
        self,
        request: ResponseRequest,
        turn: Turn,
        answer: _Answer,
        outputs: AsyncGenerator[RequestOutput, None],
    ) -> Reply | EventStream:
        runs = self._server.runs
        if runs is None or not request.store:
            raise HttpError(400, "background needs an answer that is stored", param="background")

        async def work(run: Run) -> None:
            answer.keep = run.finish
            status = answer.response.status
            try:
                async with aclosing(outputs):
                    async for events in answer.events(outputs):
                        has_changed = answer.response.status != status
                        status = answer.response.status
                        await run.add(events, encode(answer.response) if has_changed else None)
            except Exception as error:
                event = answer.failed(reply_to(error, "/v1/responses"))
                await run.finish(encode(answer.response), event)

        begun = encode(answer.response)
        await runs.start(turn, begun, streams=request.stream, work=work)
        if request.stream:
            followed = runs.follow(turn.owner, answer.response.id, after=-1)
            return EventStream(followed, end=b"")
        return Reply(begun)

    async def _count(self, exchange: Exchange) -> Reply:
        server, notes = self._server, exchange.notes
        request = server.read(exchange, ResponseRequest, RESPONSE_FIELDS)
        await server.check_model(request.model)
        note_hints(request, notes)
        turn = await read_turn(server, exchange.owner, request, notes)
        use = read_tool_use(
            turn.tools.functions or None,
            chat_tool_choice(request.tool_choice, notes),
            request.parallel_tool_calls,
        )
        ids = await server.engine.tokenize_chat(
            turn.messages,
            tools=None if use is None else use.tools,
            chat_template_kwargs=self._template_kwargs(request, notes),
            strict=True,
        )
        return Reply(encode(InputTokens(input_tokens=len(ids), warnings=told(notes))))

    def _params(self, request: ResponseRequest, notes: Notes) -> SamplingParams:
        check_stream_options(request.stream_options, notes, is_stream=request.stream)
        check_num_logprobs("top_logprobs", request.top_logprobs, self._server.max_logprobs)
        if request.top_logprobs and LOGPROBS not in request.include:
            raise HttpError(400, f"top_logprobs needs include=[{LOGPROBS!r}]", param="top_logprobs")
        context = self._server.engine.max_model_len
        more: dict[str, Any] = {}
        if request.max_output_tokens is not None:
            more["max_tokens"] = checked_max_tokens(
                "max_output_tokens", request.max_output_tokens, context
            )
        if LOGPROBS in request.include:
            more["logprobs"] = request.top_logprobs
        if request.background:
            more["output_kind"] = "delta"
        if request.text.format is not None:
            more["guided"] = request.text.format.guided()
        default = self._server.default_params(max_tokens=None)
        return request.params(default, room=context, **more)

    def _template_kwargs(self, request: ResponseRequest, notes: Notes) -> dict[str, Any]:
        effort = self._server.effort_kwargs("reasoning.effort", request.reasoning.effort, notes)
        return self._server.template_kwargs(request.chat_template_kwargs, notes) | effort


Keep = Callable[[bytes, bytes], Awaitable[bool]]
"""Keeps an answer that is whole and tells if it is; also takes the last events that tell of it."""


def _keeper(turn: Turn, store: ResponseStore) -> Keep:
    async def keep(response: bytes, events: bytes) -> bool:
        try:
            number = await store.keep(
                turn.owner, input=turn.items, response=response, after=turn.history
            )
        except IdTakenError as error:
            log.warning("an answer is not kept: %s", error)
            return False
        return number is not None

    return keep


class _Answer:
    """Makes the bodies of one answer, whole or as events in OpenAI's order."""

    def __init__(
        self,
        request: ResponseRequest,
        model: str,
        params: SamplingParams,
        notes: Notes,
        turn: Turn,
        store: ResponseStore | None,
    ) -> None:
        """``store`` None: no answer is kept."""
        name = request.request_id or uuid4().hex
        self._num_top = request.top_logprobs
        self._notes = notes
        self.keep = _keeper(turn, store) if request.store and store is not None else None
        """None: it is not kept."""
        self._usage = UsageCount()
        self._num_events = 0
        self._receipt: GuideReceipt | msgspec.UnsetType = msgspec.UNSET
        self._items = AnswerItems(name, self._event, turn.tools.namespaced)
        self._tokens = TokenTexts()
        self.response = Response(
            id=f"resp_{name}",
            created_at=int(time.time()),
            status="queued" if request.background else "in_progress",
            model=model,
            output=[],
            instructions=request.instructions,
            max_output_tokens=request.max_output_tokens,
            metadata=request.metadata,
            temperature=params.temperature,
            top_p=params.top_p,
            top_logprobs=request.top_logprobs,
            text=request.text,
            reasoning=ShownReasoning(request.reasoning.effort, request.reasoning.summary),
            tools=request.tools or [],
            tool_choice=request.tool_choice or "auto",
            parallel_tool_calls=request.parallel_tool_calls is not False,
            previous_response_id=request.previous_response_id,
            store=self.keep is not None,
            background=request.background,
            warnings=told(notes),
        )

    async def whole(self, output: RequestOutput) -> bytes:
        """The answer in one piece."""
        self._usage.add(output)
        self._receipt = receipt(output.guided)
        self._take(output.outputs[0])
        self._end(output.outputs[0])
        encoded: bytes = encode(self.response)
        if self.keep is not None and not await self.keep(encoded, b""):
            self._note_loss()
            encoded = encode(self.response)
        return encoded

    async def events(self, outputs: AsyncIterator[RequestOutput]) -> AsyncIterator[bytes]:
        """The answer piece by piece."""
        has_begun = False
        last = b""
        if self.response.background:
            yield self._told("created") + self._told("queued")
        async for output in outputs:
            self._usage.add(output)
            self._receipt = receipt(output.guided)
            if not has_begun:
                has_begun = True
                yield self._begin()
            for each in output.outputs:
                news = b"".join(self._take(each))
                if news:
                    yield news
                if each.finish_reason is not None:
                    last = b"".join(self._end(each))
        ended = self._told(self.response.status)
        # Before the client hears of it, who may go on at once.
        if self.keep is not None and not await self.keep(encode(self.response), last + ended):
            self._note_loss()
            self._num_events -= 1  # nobody has had that event
            ended = self._told(self.response.status)
        yield last + ended

    def failed(self, error: ErrorReply) -> bytes:
        """The last event of a stream that breaks off."""
        self.response.status = "failed"
        self.response.error = {"code": "server_error", "message": error.message}
        return self._told("failed")

    def _begin(self) -> bytes:
        if not self.response.background:
            return self._told("created") + self._told("in_progress")
        self.response.status = "in_progress"
        return self._told("in_progress")

    def _note_loss(self) -> None:
        self.response.store = False
        self._notes.add("store", "has no effect: the answer could not be kept")
        self.response.warnings = told(self._notes)

    def _told(self, kind: str) -> bytes:
        return self._event(kind, response=self.response)

    def _take(self, output: CompletionOutput) -> list[bytes]:
        """Add what an output, a piece or all of the answer, says; return the events of it."""
        if output.deltas is None:  # all text is content
            return self._items.take(Delta(content=output.text), self._of_text(output))
        logprobs = map(self._shown, output.delta_logprobs or [[]] * len(output.deltas))
        taken = map(self._items.take, output.deltas, logprobs)
        return [event for events in taken for event in events]

    def _of_text(self, output: CompletionOutput) -> list[ChatLogprob]:
        if output.token_starts is None or output.logprobs is None:
            return []
        self._tokens.expect(output.token_starts, output.logprobs)
        self._tokens.read(output.text)
        return self._shown(self._tokens.given(Delta(content=output.text)))

    def _shown(self, logprobs: list[TokenLogprobs]) -> list[ChatLogprob]:
        return chat_logprobs(logprobs, self._num_top, as_ids=False).content

    def _end(self, output: CompletionOutput) -> list[bytes]:
        response = self.response
        response.guided = self._receipt
        response.status = "incomplete" if output.finish_reason == "length" else "completed"
        if response.status == "incomplete":
            response.incomplete_details = {"reason": "max_output_tokens"}
        events = self._items.end(response.status)
        response.output = self._items.items
        usage = self._usage.usage()
        response.usage = ResponseUsage(
            input_tokens=usage.prompt_tokens,
            input_tokens_details=InputTokensDetails(usage.prompt_tokens_details.cached_tokens),
            output_tokens=usage.completion_tokens,
            total_tokens=usage.total_tokens,
        )
        return events

    def _event(self, kind: str, **more: Any) -> bytes:
        number, self._num_events = self._num_events, self._num_events + 1
        return named_event(f"response.{kind}", {**more, "sequence_number": number})
