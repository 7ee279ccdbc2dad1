"""The answer of /v1/messages, whole or as events in Anthropic's order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

from octavo.outputs import CompletionOutput, RequestOutput
from octavo.server.apis.messages.blocks import AnswerBlocks
from octavo.server.apis.messages.body import Message, MessageRequest, MessageUsage
from octavo.server.http.exchange import named_event
from octavo.server.protocol.notes import Notes, told
from octavo.server.protocol.usage import UsageCount
from octavo.wording import shown
from octavo_registry import Delta


class MessageAnswer:
    """Makes the bodies of one answer, whole or as events in Anthropic's order."""

    def __init__(
        self, request: MessageRequest, id: str, model: str, context: int, notes: Notes
    ) -> None:
        self._max_tokens = request.max_tokens
        self._context = context
        self._notes = notes
        self._count = UsageCount()
        self._blocks = AnswerBlocks()
        self._message = Message(
            id=id,
            model=model,
            content=[],
            usage=MessageUsage(input_tokens=0, cache_read_input_tokens=0, output_tokens=0),
        )

    def whole(self, output: RequestOutput) -> Message:
        """The answer in one piece."""
        self._add(output)
        self._note_room(output)
        (answer,) = output.outputs
        self._take(answer)
        self._blocks.end()
        self._message.content = self._blocks.blocks
        self._message.warnings = told(self._notes)
        self._end(answer)
        return self._message

    async def events(self, outputs: AsyncIterator[RequestOutput]) -> AsyncIterator[bytes]:
        """The answer piece by piece."""
        has_begun = False
        async for output in outputs:
            if not has_begun:
                has_begun = True
                self._note_room(output)
                self._add(replace(output, outputs=[]))
                yield self._begin()
            self._add(output)
            for each in output.outputs:
                news = b"".join(self._take(each))
                if news:
                    yield news
                if each.finish_reason is not None:
                    self._end(each)
        yield self._last()

    def _note_room(self, output: RequestOutput) -> None:
        room = self._context - len(output.prompt_token_ids)
        if self._max_tokens > room:
            cut = f"{shown(self._max_tokens)} is cut to the {room} that the context leaves"
            self._notes.add("max_tokens", cut)

    def _take(self, output: CompletionOutput) -> list[bytes]:
        """Add what an output, a piece or all of the answer, says; return the events of it."""
        deltas = [Delta(content=output.text)] if output.deltas is None else output.deltas
        return [event for delta in deltas for event in self._blocks.take(delta)]

    def _begin(self) -> bytes:
        self._message.warnings = told(self._notes)
        return b"".join(
            (
                named_event("message_start", {"message": self._message}),
                named_event("ping", {}),
            )
        )

    def _last(self) -> bytes:
        message = self._message
        delta = {"stop_reason": message.stop_reason, "stop_sequence": message.stop_sequence}
        return b"".join(
            (
                *self._blocks.end(),
                named_event("message_delta", {"delta": delta, "usage": message.usage}),
                named_event("message_stop", {}),
            )
        )

    def _add(self, output: RequestOutput) -> None:
        self._count.add(output)
        usage = self._count.usage()
        cached = usage.prompt_tokens_details.cached_tokens
        self._message.usage = MessageUsage(
            input_tokens=usage.prompt_tokens - cached,
            cache_read_input_tokens=cached,
            output_tokens=usage.completion_tokens,
        )

    def _end(self, output: CompletionOutput) -> None:
        message = self._message
        if isinstance(output.stop_reason, str):
            message.stop_reason, message.stop_sequence = "stop_sequence", output.stop_reason
        elif output.finish_reason != "length" and self._blocks.has_calls:
            message.stop_reason = "tool_use"
        elif output.finish_reason != "length":
            message.stop_reason = "end_turn"
        elif message.usage.output_tokens < self._max_tokens:
            message.stop_reason = "model_context_window_exceeded"
        else:
            message.stop_reason = "max_tokens"
