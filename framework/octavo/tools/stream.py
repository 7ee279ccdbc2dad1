"""Drives a parser through a message that comes in pieces."""

from __future__ import annotations

from collections.abc import Callable

from octavo.tools.reader import Reader, Reading
from octavo_registry import Delta


class Stream:
    """One message that is parsed by ``parse``, which reads it to its end.

    What ``parse`` leaves unread is content, and so is what it holds when the text ends.
    """

    def __init__(self, parse: Callable[[Reader], Reading[None]]) -> None:
        self._reader = Reader()
        self._reading = _whole(parse, self._reader)
        next(self._reading)

    def feed(self, text: str) -> list[Delta]:
        """Take the next piece of text, of any length; return what became certain by it."""
        if not text:
            return []
        if self._reader.append(text):
            next(self._reading)
        return self._reader.taken()

    def finish(self) -> list[Delta]:
        """Take the end of the text; return what was held back."""
        self._reader.end()
        next(self._reading, None)
        return self._reader.taken()


def _whole(parse: Callable[[Reader], Reading[None]], reader: Reader) -> Reading[None]:
    yield  # the first piece is not there yet
    yield from parse(reader)
    reader.give_back()
    yield from reader.text_until()
    reader.close()
