"""The answer of /v1/completions, whole or as events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing

from octavo.outputs import CompletionOutput, RequestOutput, TokenLogprobs
from octavo.server.apis.completions.body import Completion, CompletionChoice, CompletionRequest
from octavo.server.context import ServerContext
from octavo.server.http.exchange import event
from octavo.server.protocol.guided import receipt
from octavo.server.protocol.logprobs import CompletionLogprobs, LogprobText, prompt_logprobs
from octavo.server.protocol.merging import merge_streams
from octavo.server.protocol.notes import Notes, told


class CompletionAnswer:
    """Makes the bodies of one answer, whole or piece by piece."""

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
