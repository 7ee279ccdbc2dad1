"""/v1/responses."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from octavo.outputs import RequestOutput
from octavo.params import SamplingParams
from octavo.server.apis.responses.answer import ResponseAnswer
from octavo.server.apis.responses.body import (
    LOGPROBS,
    RESPONSE_FIELDS,
    Response,
    ResponseRequest,
    check_metadata,
    note_hints,
)
from octavo.server.apis.responses.kept_body import InputTokens
from octavo.server.apis.responses.runs import BackgroundRun
from octavo.server.apis.responses.turn import Turn, read_turn
from octavo.server.context import ServerContext
from octavo.server.http.errors import HttpError, reply_to
from octavo.server.http.exchange import EventStream, Exchange, Reply, encode
from octavo.server.http.openapi import operation
from octavo.server.protocol.merging import final_output
from octavo.server.protocol.notes import Notes, told
from octavo.server.protocol.sampling import check_num_logprobs, checked_max_tokens
from octavo.server.protocol.tool_pairs import check_items
from octavo.server.protocol.usage import check_stream_options
from octavo_registry.routes import Endpoint


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
        self._check_pairs(turn)
        conversation = turn.conversation(request, notes, self._template_kwargs(request, notes))
        answer = ResponseAnswer(request, model, params, notes, turn, server.responses)
        outputs = server.engine.answer(conversation, params, request.options(), adapter)
        if request.background:
            return await self._in_background(request, turn, answer, outputs)
        if request.stream:
            return EventStream(answer.events(outputs), end=b"", failed=answer.failed)
        return Reply(await answer.whole(await final_output(outputs)))

    async def _in_background(
        self,
        request: ResponseRequest,
        turn: Turn,
        answer: ResponseAnswer,
        outputs: AsyncGenerator[RequestOutput, None],
    ) -> Reply | EventStream:
        runs = self._server.runs
        if runs is None or not request.store:
            raise HttpError(400, "background needs an answer that is stored", param="background")

        async def work(run: BackgroundRun) -> None:
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
        self._check_pairs(turn)
        ids = await server.engine.tokenize_chat(
            turn.conversation(request, notes, self._template_kwargs(request, notes))
        )
        return Reply(encode(InputTokens(input_tokens=len(ids), warnings=told(notes))))

    def _check_pairs(self, turn: Turn) -> None:
        if not self._server.config.serve.allow_unpaired_tool_calls:
            check_items(turn.messages)

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
