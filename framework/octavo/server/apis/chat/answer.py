"""The answer of /v1/chat/completions, whole or as events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from octavo.outputs import CompletionOutput, GuideReceipt, RequestOutput
from octavo.server.apis.chat.body import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatMessage,
    ChatRequest,
)
from octavo.server.context import ServerContext
from octavo.server.http.exchange import event
from octavo.server.protocol.guided import receipt
from octavo.server.protocol.logprobs import ChatLogprobs, chat_logprobs, prompt_logprobs
from octavo.server.protocol.notes import Notes, told
from octavo.server.protocol.tool_calls import ToolCallPiece, delta_fields, message_fields


class ChatAnswer:
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
