"""What a parser makes of a message, collected as deltas."""

from __future__ import annotations

from typing import Literal, TypeAlias

from octavo_registry import Delta

_Kind: TypeAlias = Literal["content", "reasoning", "arguments"]


class Deltas:
    """Collects a message's parts in their order; neighbouring pieces of a kind become one delta.

    Content is passed on exactly, but for a stretch of nothing but white space before, between or
    after calls: that is dropped.
    """

    def __init__(self) -> None:
        self._deltas: list[Delta] = []
        self._kind: _Kind = "content"
        self._pieces: list[str] = []
        self._num_calls = 0
        self._blank: list[str] | None = []
        """The stretch of content so far while it is white space; None when it is more."""

    def content(self, text: str) -> None:
        """Add content."""
        if self._blank is None:
            if self._kind == "content" and text:  # most calls, so it is not left to a further one
                self._pieces.append(text)
            else:
                self._add("content", text)
        elif text:
            self._blank.append(text)
            if not text.isspace():
                stretch, self._blank = "".join(self._blank), None
                self._add("content", stretch)

    def reasoning(self, text: str) -> None:
        """Add reasoning."""
        self._add("reasoning", text)

    def call(self, name: str, id: str | None = None) -> None:
        """Begin a call; ``id`` is the model's own, if it wrote one."""
        self._flush()
        self._blank = []
        self._deltas.append(Delta(tool_call_index=self._num_calls, id=id, name=name))
        self._num_calls += 1

    def arguments(self, text: str) -> None:
        """Add to the JSON text of the last call's arguments."""
        if self._kind == "arguments" and text:  # as for content
            self._pieces.append(text)
        else:
            assert self._num_calls > 0, "arguments belong to a call"
            self._add("arguments", text)

    def taken(self) -> list[Delta]:
        """Return what has been collected since the last time."""
        if self._pieces:
            self._flush()
        if not self._deltas:
            return []
        deltas, self._deltas = self._deltas, []
        return deltas

    def close(self) -> None:
        """Say that the message is over: what is held back as white space is decided."""
        if self._blank and not self._num_calls:
            self._add("content", "".join(self._blank))
        self._blank = []

    def _add(self, kind: _Kind, text: str) -> None:
        if text:
            if kind != self._kind:
                self._flush()
                self._kind = kind
            self._pieces.append(text)

    def _flush(self) -> None:
        if self._pieces:
            pieces, self._pieces = self._pieces, []
            text = pieces[0] if len(pieces) == 1 else "".join(pieces)
            if self._kind == "content":
                delta = Delta(content=text)
            elif self._kind == "reasoning":
                delta = Delta(reasoning=text)
            else:
                delta = Delta(tool_call_index=self._num_calls - 1, arguments=text)
            self._deltas.append(delta)
