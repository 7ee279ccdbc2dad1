"""/v1/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from octavo.inputs import Prompt
from octavo.outputs import CompletionOutput, RequestOutput, TokenLogprobs
from octavo.params import LoRARequest, SamplingParams
from octavo.server.context import ServerContext
from octavo.server.errors import HttpError
from octavo.server.exchange import EventStream, Exchange, Reply, encode, event
from octavo.server.merging import final_outputs, merge_streams
from octavo.server.openapi import operation
from octavo.server.protocol.beams import as_output, beam_params
from octavo.server.protocol.completions import (
    COMPLETION_FIELDS,
    Completion,
    CompletionChoice,
    CompletionRequest,
)
from octavo.server.protocol.guided import receipt
from octavo.server.protocol.logprobs import CompletionLogprobs, LogprobText, prompt_logprobs
from octavo.server.protocol.notes import Notes, told
from octavo.server.protocol.sampling import check_num_logprobs, checked_max_tokens
from octavo.server.protocol.usage import check_stream_options
from octavo_registry.routes import Endpoint


class CompletionRoutes:
    """Continues texts."""

    def __init__(self, server: ServerContext) -> None:
        self._server = server

    def endpoints(self) -> Sequence[Endpoint]:
        """Return the one endpoint."""
        described = operation(
            "Continue prompts", request=CompletionRequest, reply=Completion, streams=True
        )
        return [
            self._server.endpoint("POST", "/v1/completions", self.create, described, generates=True)
        ]

    async def create(self, exchange: Exchange) -> Reply | EventStream:
        """Answer one request."""
        request = self._server.read(exchange, CompletionRequest, COMPLETION_FIELDS)
        model, adapter = await self._server.check_model(request.model)
        params = self._params(request, exchange.notes)
        prompts = _prompts(request.prompt)
        self._server.check_sequences(len(prompts), params)
        named = request.request_id or exchange.request_id
        answer = _Answer(request, f"cmpl-{named}", model, params.n, self._server, exchange.notes)
        if request.use_beam_search:
            found = await self._beams(request, prompts, params, adapter, exchange.notes, named)
            return Reply(encode(answer.whole(found)))
        streams = [self._generate(prompt, number, request, params, adapter, len(prompts))
                   for number, prompt in enumerate(prompts)]  # fmt: skip
        if request.stream:
            return EventStream(answer.events(streams))
        return Reply(encode(answer.whole(await final_outputs(streams))))

    async def _beams(
        self,
        request: CompletionRequest,
        prompts: list[Prompt],
        params: SamplingParams,
        adapter: LoRARequest | None,
        notes: Notes,
        name: str,
    ) -> list[RequestOutput]:
        wanted = beam_params(
            request,
            max_tokens=params.max_tokens or self._server.engine.max_model_len,
            notes=notes,
            others={"logprobs": request.logprobs is not None, "echo": request.echo},
        )
        made = []
        for number, prompt in enumerate(prompts):  # the beams of one fill a step as well
            given: dict[str, Any] = (
                {"prompt": prompt} if isinstance(prompt, str) else {"prompt_token_ids": prompt}
            )
            found = await self._server.engine.beam_search(
                {**given, "cache_salt": request.cache_salt},
                wanted,
                lora_request=adapter,
                priority=request.priority,
                add_special_tokens=request.add_special_tokens,
            )
            text = prompt if isinstance(prompt, str) else None
            made.append(as_output(found, f"{name}-{number}", text))
        return made

    def _generate(
        self,
        prompt: Prompt,
        number: int,
        request: CompletionRequest,
        params: SamplingParams,
        adapter: LoRARequest | None,
        num_prompts: int,
    ) -> AsyncGenerator[RequestOutput, None]:
        named = request.request_id
        if named is not None and num_prompts > 1:
            named = f"{named}-{number}"
        given: dict[str, Any] = (
            {"prompt": prompt} if isinstance(prompt, str) else {"prompt_token_ids": prompt}
        )
        return self._server.engine.generate(
            {**given, "cache_salt": request.cache_salt},
            params,
            request_id=named,
            priority=request.priority,
            add_special_tokens=request.add_special_tokens,
            lora_request=adapter,
        )

    def _params(self, request: CompletionRequest, notes: Notes) -> SamplingParams:
        context = self._server.engine.max_model_len
        more: dict[str, Any] = {}
        if request.max_tokens == 0:
            if not request.echo:
                raise HttpError(400, "max_tokens=0 needs echo=true", param="max_tokens")
            more["max_tokens"] = 1  # the engine gives one at least, which is not shown
        elif request.max_tokens is not None:
            more["max_tokens"] = checked_max_tokens("max_tokens", request.max_tokens, context)
        request.check_beams()
        if request.logprobs is not None:
            check_num_logprobs("logprobs", request.logprobs, self._server.max_logprobs)
            more["logprobs"] = request.logprobs
            asked = request.prompt_logprobs
            if request.echo and (asked is msgspec.UNSET or 0 <= asked < request.logprobs):
                more["prompt_logprobs"] = request.logprobs
        check_stream_options(request.stream_options, notes, is_stream=request.stream)
        default = self._server.default_params(max_tokens=16)
        return request.params(default, room=context, **more)


def _prompts(given: str | list[Any]) -> list[Prompt]:
    """One text, many texts, one list of ids, or many."""
    if isinstance(given, str):
        return [given]
    if not given:
        raise HttpError(400, "prompt is an empty list", param="prompt")
    kinds = {type(each) for each in given}
    if len(kinds) > 1:
        raise HttpError(
            400, "prompt must be texts, token ids, or lists of token ids, not a mixture of these",
            param="prompt",
        )  # fmt: skip
    return [given] if kinds == {int} else list(given)


class _Answer:
    """Makes the bodies of one answer."""

    def __init__(
        self,
        request: CompletionRequest,
        id: str,
        model: str,
        n: int,
        server: ServerContext,
        notes: Notes,
    ) -> None:
        self._request = request
        self._n = n
        self._engine = server.engine
        self._notes = notes
        self._usage = server.count_usage(request.stream_options)
        self._as_ids = server.as_token_ids(request.return_tokens_as_token_ids)
        self._texts: dict[int, LogprobText] = {}
        self._begun: set[int] = set()
        """The texts of which something has been told."""
        self._head = server.head(id, model)

    def whole(self, outputs: list[RequestOutput]) -> Completion:
        """The answer in one piece."""
        choices = []
        for number, output in enumerate(outputs):
            self._count(output)
            choices += [
                self._choice(number, output, each, begins=True).with_nulls()
                for each in output.outputs
            ]
        return Completion(
            **self._head,
            choices=choices,
            usage=self._usage.usage(),
            guided=receipt(outputs[0].guided),
            warnings=told(self._notes),
        )

    async def events(
        self, streams: Sequence[AsyncGenerator[RequestOutput, None]]
    ) -> AsyncIterator[bytes]:
        """The answer piece by piece."""
        if len(streams) == 1:
            async with aclosing(streams[0]) as outputs:
                async for output in outputs:
                    yield self._news(0, output)
        else:
            async with aclosing(merge_streams(streams)) as merged:
                async for number, output in merged:
                    yield self._news(number, output)
        if self._usage.has_own_event:
            yield event(Completion(**self._head, choices=[], usage=self._usage.usage()))

    def _news(self, number: int, output: RequestOutput) -> bytes:
        """One event for each text that goes on."""
        self._count(output)
        events = []
        for each in output.outputs:
            index = number * self._n + each.index
            choice = self._choice(number, output, each, begins=index not in self._begun)
            chunk = Completion(**self._head, choices=[choice], usage=self._usage.in_event())
            if not self._begun:
                chunk.warnings = told(self._notes)
            self._begun.add(index)
            if choice.finish_reason is not None:
                chunk.guided = receipt(output.guided)
            events.append(event(chunk))
        return b"".join(events)

    def _count(self, output: RequestOutput) -> None:
        if self._request.max_tokens == 0:
            for each in output.outputs:
                each.text, each.token_ids = "", []
                each.logprobs = None if each.logprobs is None else []
                each.finish_reason = each.finish_reason and "length"
                each.stop_reason = None
        self._usage.add(output)

    def _choice(
        self, number: int, output: RequestOutput, each: CompletionOutput, *, begins: bool
    ) -> CompletionChoice:
        request = self._request
        index = number * self._n + each.index
        echoes = request.echo and begins
        choice = CompletionChoice(
            index=index,
            text=(self._prompt_text(output) if echoes else "") + each.text,
            logprobs=self._logprobs(index, output, each, echoes=echoes),
            finish_reason=each.finish_reason,
            stop_reason=each.stop_reason,
        )
        if begins:
            choice.prompt_logprobs = prompt_logprobs(output, request.prompt_logprobs)
        if request.return_token_ids:
            choice.token_ids = each.token_ids
            if begins:
                choice.prompt_token_ids = output.prompt_token_ids
        return choice

    def _logprobs(
        self, index: int, output: RequestOutput, each: CompletionOutput, *, echoes: bool
    ) -> CompletionLogprobs | None:
        request = self._request
        if request.logprobs is None or each.logprobs is None:
            return None
        text = self._texts.setdefault(index, LogprobText(request.logprobs, as_ids=self._as_ids))
        tokens: list[TokenLogprobs | None] = list(each.logprobs)
        ids = list(each.token_ids)
        if echoes:
            tokens = [*(output.prompt_logprobs or []), *tokens]
            ids = [*output.prompt_token_ids, *ids]
        named = [
            self._decode([token]) if entry is None else entry[token].decoded_token or ""
            for token, entry in zip(ids, tokens, strict=True)
        ]
        return text.take(ids, tokens, named)

    def _prompt_text(self, output: RequestOutput) -> str:
        if output.prompt is not None:
            return output.prompt
        return self._decode(output.prompt_token_ids)

    def _decode(self, token_ids: list[int]) -> str:
        text: str = self._engine.get_tokenizer().decode(token_ids)
        return text
