"""The answer of /v1/responses, whole or as events."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from uuid import uuid4

import msgspec

from octavo.outputs import CompletionOutput, GuideReceipt, RequestOutput, TokenLogprobs
from octavo.params import SamplingParams
from octavo.server.apis.responses.body import (
    InputTokensDetails,
    Response,
    ResponseRequest,
    ResponseUsage,
    ShownReasoning,
)
from octavo.server.apis.responses.items import AnswerItems
from octavo.server.apis.responses.store import IdTakenError, ResponseStore
from octavo.server.apis.responses.turn import Turn
from octavo.server.http.errors import ErrorReply
from octavo.server.http.exchange import encode, named_event
from octavo.server.protocol.guided import receipt
from octavo.server.protocol.logprobs import ChatLogprob, chat_logprobs
from octavo.server.protocol.notes import Notes, told
from octavo.server.protocol.usage import UsageCount
from octavo.tools.token_texts import TokenTexts
from octavo_registry import Delta

log = logging.getLogger(__name__)

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


class ResponseAnswer:
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
