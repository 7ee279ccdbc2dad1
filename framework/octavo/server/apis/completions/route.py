"""/v1/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any

import msgspec

from octavo.inputs import Prompt
from octavo.outputs import RequestOutput
from octavo.params import LoRARequest, SamplingParams
from octavo.server.apis.completions.answer import CompletionAnswer
from octavo.server.apis.completions.body import COMPLETION_FIELDS, Completion, CompletionRequest
from octavo.server.context import ServerContext
from octavo.server.http.errors import HttpError
from octavo.server.http.exchange import EventStream, Exchange, Reply, encode
from octavo.server.http.openapi import operation
from octavo.server.protocol.beams import as_output, beam_params
from octavo.server.protocol.merging import final_outputs
from octavo.server.protocol.notes import Notes
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
        answer = CompletionAnswer(
            request, f"cmpl-{named}", model, params.n, self._server, exchange.notes
        )
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
