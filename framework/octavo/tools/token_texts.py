"""Which tokens' text a parser puts into which of its deltas."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Literal

from octavo.outputs import TokenLogprobs
from octavo_registry import Delta


class TokenTexts:
    """Follows the tokens of one answer through the parser that reads their text.

    Parsers pass reasoning and content on as they are and drop the marks around them. So what one
    gives is found again in the text: right behind what it gave last, or else, where marks stood
    between, as late as it may be. Places are counted from the text's beginning.
    """

    def __init__(self) -> None:
        self._tokens: deque[tuple[int, TokenLogprobs]] = deque()
        """Tokens whose first visible character has not come out yet, with their begin."""
        self._cuts: deque[int] = deque()
        """Where tokens begin behind what was read."""
        self._text = ""
        """What was read, from ``_begin`` on: nothing that is still to come out lies before."""
        self._unjoined: list[str] = []
        """What was read behind it: a call's pieces are many, and none is looked for."""
        self._begin = 0
        self._end = 0
        self._given_end = 0
        self._kind: Literal["content", "reasoning", "call"] = "content"
        """The kind of what was given last."""

    def expect(self, starts: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> None:
        """Take the next tokens; a stop string may hold back their text."""
        self._tokens.extend(zip(starts, logprobs, strict=True))
        self._cuts.extend(starts)

    def pieces(self, text: str) -> Iterator[str]:
        """Cut the next text where tokens begin."""
        first = begin = self._end
        last = first + len(text)
        while begin < last:
            end = self._cuts[0] if self._cuts and self._cuts[0] < last else last
            if end > begin:
                yield text[begin - first : end - first]
                begin = end
            if end < last:
                self._cuts.popleft()

    def read(self, piece: str) -> None:
        """Say what the parser gets next."""
        self._unjoined.append(piece)
        self._end += len(piece)

    def given(self, delta: Delta) -> list[TokenLogprobs]:
        """Return the tokens whose first visible character is in a delta's content.

        To be called for each delta, before the parser gets the next piece.
        """
        before, text = self._kind, delta.content or delta.reasoning
        if not text:  # a call's, whose text is the parser's own
            self._kind = "call"
            return []
        self._kind = "content" if delta.content else "reasoning"
        self._text += "".join(self._unjoined)
        self._unjoined.clear()
        behind = self._given_end - self._begin
        goes_on = self._kind == before and self._text.startswith(text, behind)
        place = behind if goes_on else self._text.rfind(text)
        if place < 0:  # some parsers put parts of an answer on lines of their own
            text = text.lstrip()
            place = self._text.rfind(text) if text else -1
        if place < 0:  # it is the parser's own
            return []
        self._text, self._begin = self._text[place:], self._begin + place
        self._given_end = self._begin + len(text)
        found = self._within(self._begin, self._given_end)
        return found if delta.content else []

    def _within(self, begin: int, end: int) -> list[TokenLogprobs]:
        found = []
        while self._tokens and self._tokens[0][0] < end:
            start, logprobs = self._tokens.popleft()
            next_start = self._tokens[0][0] if self._tokens else end
            if start >= begin or next_start > begin:
                found.append(logprobs)
        return found
