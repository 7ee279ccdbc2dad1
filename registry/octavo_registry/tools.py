"""Parsers of a model's text: tool calls and reasoning, from text that comes piece by piece.

There is one implementation, the stream; a whole text is a stream that was fed once. Where the text
is cut must not matter: the deltas of any cut, joined, are the same message.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import msgspec

from octavo_registry.structure import Structure

ToolDefinition = Mapping[str, Any]
"""One entry of OpenAI's ``tools``."""


class Delta(msgspec.Struct, frozen=True, kw_only=True):  # made in a tenth of a dataclass's time
    """What a piece of text added: content, reasoning, or a part of one tool call."""

    content: str | None = None
    reasoning: str | None = None
    tool_call_index: int | None = None
    """Which call ``id``, ``name`` and ``arguments`` belong to; calls are counted from 0."""
    id: str | None = None
    """The model's own id of the call; None: the framework makes one."""
    name: str | None = None
    """The whole name, once, in a call's first delta."""
    arguments: str | None = None
    """The next part of the arguments' JSON text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One complete call; ``arguments`` is JSON text as the model wrote it."""

    name: str
    arguments: str
    id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedMessage:
    """A message taken apart; None where the model wrote nothing of a kind."""

    content: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()

    @classmethod
    def joined(cls, deltas: Iterable[Delta]) -> ParsedMessage:
        """Join the deltas of one stream."""
        content: list[str] = []
        reasoning: list[str] = []
        calls: dict[int, list[Delta]] = {}
        for delta in deltas:
            content.append(delta.content or "")
            reasoning.append(delta.reasoning or "")
            if delta.tool_call_index is not None:
                calls.setdefault(delta.tool_call_index, []).append(delta)
        return cls(
            content="".join(content) or None,
            reasoning="".join(reasoning) or None,
            tool_calls=tuple(_joined_call(parts) for _, parts in sorted(calls.items())),
        )


def _joined_call(parts: Sequence[Delta]) -> ToolCall:
    return ToolCall(
        id=next((part.id for part in parts if part.id is not None), None),
        name="".join(part.name or "" for part in parts),
        arguments="".join(part.arguments or "" for part in parts),
    )


class ParserStream(Protocol):
    """The state of one message that is being parsed; never shared between messages."""

    def feed(self, text: str) -> list[Delta]:
        """Take the next piece of text, of any length; return what became certain by it."""
        ...

    def finish(self) -> list[Delta]:
        """Take the end of the text; return what was held back. Called once, after all feeds."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CallForm:
    """How a model must write calls of certain tools, so that a guide can hold it to that."""

    calls: Structure
    """One call at least, with all that the format puts around and between calls."""
    triggers: tuple[str, ...]
    """The texts with which calls begin; free text before them has none of these."""


@runtime_checkable
class ToolParser(Protocol):
    """The tool-call format of some models. Made once a process: ``Parser(tokenizer)``.

    ``tokenizer`` is the model's or None; a parser must also work without.
    """

    samples: Sequence[str]
    """Texts in this format, one with a call at least; the conformance kit cuts them everywhere."""
    markers: Sequence[str]
    """Special tokens of the format: they stay in the text though special tokens are skipped."""

    def form(self, tools: Sequence[ToolDefinition], *, parallel: bool) -> CallForm | None:
        """How calls of these tools are written, one or, if ``parallel``, several of them.

        ``stream`` reads every text of the form back as calls whose arguments the tools' schemas
        admit. None: this format cannot be demanded; a request that does is refused.
        """
        ...

    def stream(self, tools: Sequence[ToolDefinition] | None = None) -> ParserStream:
        """Begin a message; ``tools`` are the request's, None when it had none."""
        ...


@runtime_checkable
class ReasoningParser(Protocol):
    """How some models mark their reasoning. Made once a process: ``Parser(tokenizer)``."""

    samples: Sequence[str]
    """Texts in this format, one with reasoning at least; the conformance kit cuts them."""
    markers: Sequence[str]
    """Special tokens of the format: they stay in the text though special tokens are skipped."""

    def stream(
        self, tools: Sequence[ToolDefinition] | None = None, *, prompt: str | None = None
    ) -> ParserStream:
        """Begin a message; its deltas have ``reasoning`` and ``content`` only.

        ``prompt`` is the text that the model goes on from: it may have begun the reasoning, or
        ended it. None: unknown, and the format's usual prompt is assumed.
        """
        ...

    def before_answer(self, prompt: str) -> Structure | None:
        """What the model may write after ``prompt`` before its answer; None: nothing.

        With it a guide begins where the reasoning has ended.
        """
        ...
