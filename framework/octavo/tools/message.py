"""A message's reasoning and its calls: two parsers, one behind the other."""

from __future__ import annotations

from collections.abc import Iterable

from octavo_registry import Delta, ParserStream


class MessageStream:
    """Takes a model's text: the reasoning comes out, and the rest goes through the tool parser.

    Either parser may be missing; without both all text is content.
    """

    def __init__(
        self, *, reasoning: ParserStream | None = None, tools: ParserStream | None = None
    ) -> None:
        self._reasoning = reasoning
        self._tools = tools

    def feed(self, text: str) -> list[Delta]:
        """Take the next piece of text, of any length; return what became certain by it."""
        if self._reasoning is None:
            return self._without_reasoning(text)
        return self._through_tools(self._reasoning.feed(text))

    def finish(self) -> list[Delta]:
        """Take the end of the text; return what was held back."""
        deltas = self._through_tools(self._reasoning.finish()) if self._reasoning else []
        return [*deltas, *(self._tools.finish() if self._tools else ())]

    def _through_tools(self, deltas: Iterable[Delta]) -> list[Delta]:
        found = []
        for delta in deltas:
            if delta.reasoning:
                found.append(Delta(reasoning=delta.reasoning))
            if delta.content:
                found += self._without_reasoning(delta.content)
        return found

    def _without_reasoning(self, text: str) -> list[Delta]:
        if self._tools is not None:
            return self._tools.feed(text)
        return [Delta(content=text)] if text else []
