"""Stop strings in streamed text."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Finds the stop string that is completed first; of two at the same place, the longer.

    Text goes through a Knuth-Morris-Pratt automaton for each string, one character at a time, so
    that the result cannot depend on how the text was cut. Text that could begin a stop string is
    held back.
    """

    def __init__(self, strings: Sequence[str], *, include_in_output: bool = False) -> None:
        self.strings = sorted(strings, key=len, reverse=True)
        """Longest first."""
        self._failures = [_failure_table(text) for text in self.strings]
        self._matched_chars = [0] * len(self.strings)
        self._first_chars = frozenset(text[0] for text in self.strings)
        self._include = include_in_output
        self._held = ""
        self.matched: str | None = None
        """The stop string that ended the text."""

    def feed(self, piece: str) -> str:
        """Take the next text; return what may be shown. Not to be called after a match."""
        if not self._held and self._first_chars.isdisjoint(piece):
            return piece
        text = self._held + piece
        for end, char in enumerate(piece, start=len(self._held) + 1):
            self.matched = self._advance(char)
            if self.matched is not None:
                self._held = ""
                return text[: end if self._include else end - len(self.matched)]
        num_shown = len(text) - max(self._matched_chars)
        self._held = text[num_shown:]
        return text[:num_shown]

    def finish(self) -> str:
        """Return what is held back; no more text will come."""
        return self._held

    def _advance(self, char: str) -> str | None:
        for index, (text, failures) in enumerate(zip(self.strings, self._failures, strict=True)):
            count = self._matched_chars[index]
            while count and text[count] != char:
                count = failures[count - 1]
            count += text[count] == char
            self._matched_chars[index] = count
            if count == len(text):
                return text
        return None


def _failure_table(text: str) -> list[int]:
    """For each prefix, the length of its longest proper prefix that is also its suffix."""
    table = [0] * len(text)
    count = 0
    for index in range(1, len(text)):
        while count and text[index] != text[count]:
            count = table[count - 1]
        count += text[index] == text[count]
        table[index] = count
    return table
