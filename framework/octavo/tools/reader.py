"""Reads a text that comes in pieces as if it lay there whole.

A parser is a generator over a `Reader`: it asks for the next tag, value or character with
``yield from``, and is paused there while the piece that has come is too short to tell. What it
decides depends on the text alone, never on where a piece ends.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from functools import lru_cache
from typing import TypeAlias, TypeVar

from octavo.tools.deltas import Deltas
from octavo.tools.json_text import (
    LONGEST_ESCAPE,
    WHOLE_STRING,
    ValueScan,
    decodable_end,
    decoded,
    decoded_string,
)

T = TypeVar("T")
Reading: TypeAlias = Generator[None, None, T]
"""What reads on with ``yield from`` and then has a result."""
Sink: TypeAlias = Callable[[str], object]
"""Takes text as it comes: `Reader.content`, `Reader.arguments`, a list's ``append``, `ignore`."""

_SCALAR = r"[\w.+\-]"
_SPACES = re.compile(r"\s++")


def ignore(text: str) -> None:
    """Take text that is markup."""


class Reader(Deltas):
    """The text of one message, and what a parser makes of it.

    Methods that are ``Reading`` consume text, or leave it if it is not what they look for; nothing
    is read twice. What was consumed and may turn out to be content is kept with ``hold``.
    """

    def __init__(self) -> None:
        super().__init__()
        self._buffer = ""
        self._at = 0
        self._ended = False
        self._held: list[str] | None = None

    def append(self, text: str) -> None:
        """Add the next piece of the message; for the stream that drives the parser."""
        self._buffer = self._buffer[self._at :] + text
        self._at = 0

    def end(self) -> None:
        """Say that no piece comes any more; for the stream that drives the parser."""
        self._ended = True

    def hold(self, text: str = "") -> None:
        """Keep ``text``, which was just read, and all that is read from here on.

        It ends with ``call``, of which the text was a part, with ``drop`` or with ``give_back``.
        """
        if self._held is None:
            self._held = [text]

    def give_back(self) -> None:
        """Make what was held content: it is no call."""
        held, self._held = self._held, None
        self.content("".join(held or ()))

    def drop(self) -> None:
        """Forget what was held: it is markup."""
        self._held = None

    def call(self, name: str, id: str | None = None) -> None:
        """Begin a call; what was held belongs to it. Its ``arguments`` follow."""
        self._held = None
        super().call(name, id)

    def text_until(self, *tags: str, to: Sink | None = None) -> Reading[str | None]:
        """Pass text on up to the first of the tags, or the end; return the tag, now behind us.

        Without ``to`` the text is content. Where two tags begin at one place the longer one counts.
        """
        to = to or self.content
        complete, or_begun = _tag_patterns(tags)
        while True:
            match = (complete if self._ended else or_begun).search(self._buffer, self._at)
            to(self._take(match.start() if match else len(self._buffer)))
            if match and match.lastindex:
                return self._take(match.end())
            if not (yield from self._more()) and match is None:
                return None

    def read_until(self, *tags: str) -> Reading[tuple[str, str | None]]:
        """Read text up to the first of the tags, or the end; return both, now behind us."""
        parts: list[str] = []
        tag = yield from self.text_until(*tags, to=parts.append)
        return "".join(parts), tag

    def literal(self, *texts: str) -> Reading[str | None]:
        """Read one of these texts, the longest that is next; None: none is, nothing was read."""
        if len(texts) == 1 and self._buffer.startswith(texts[0], self._at):
            return self._take(self._at + len(texts[0]))
        complete, or_begun = _tag_patterns(texts)
        while True:
            match = (complete if self._ended else or_begun).match(self._buffer, self._at)
            if match and match.lastindex:
                return self._take(match.end())
            if match is None and self._at < len(self._buffer):
                return None
            if not (yield from self._more()) and match is None:
                return None

    def peek(self, count: int = 1) -> Reading[str]:
        """Return the next characters, fewer at the end of the text; they stay unread."""
        while len(self._buffer) - self._at < count and (yield from self._more()):
            pass
        return self._buffer[self._at : self._at + count]

    def take(self, count: int) -> Reading[str]:
        """Read the next characters, fewer at the end of the text."""
        yield from self.peek(count)
        return self._take(self._at + count)

    def take_while(self, characters: str, to: Sink | None = None) -> Reading[str]:
        """Read as long as characters of a class such as ``[a-z]`` come; return what was read.

        ``to`` also gets it, as it comes.
        """
        run = _run_pattern(characters)
        parts: list[str] = []
        while True:
            match = run.match(self._buffer, self._at)
            assert match is not None
            parts.append(self._take(match.end()))
            if to:
                to(parts[-1])
            if self._at < len(self._buffer) or not (yield from self._more()):
                return "".join(parts)

    def spaces(self) -> Reading[None]:
        """Read white space, if any is next."""
        while True:
            match = _SPACES.match(self._buffer, self._at)
            if match:
                self._take(match.end())
            if self._at < len(self._buffer) or not (yield from self._more()):
                return

    def skip(self, *texts: str) -> Reading[str | None]:
        """Leave out one of these texts, with white space before it, and return it.

        None: none is next; the white space is content then.
        """
        self.hold()
        yield from self.spaces()
        text = yield from self.literal(*texts)
        if text:
            self.drop()
        else:
            self.give_back()
        return text

    def json_string(self) -> Reading[str | None]:
        """Read a JSON string and return its text; None: it is none, or it does not end."""
        if match := WHOLE_STRING.match(self._buffer, self._at):  # it is all there, as a rule
            return decoded_string(self._take(match.end()))
        if (yield from self.peek()) != '"':
            return None
        parts: list[str] = []
        complete = yield from self.json_value(to=parts.append)
        return decoded_string("".join(parts)) if complete else None

    def json_string_text(self, to: Sink) -> Reading[bool]:
        """Pass on the text that a JSON string holds, unescaped; return whether the string ended."""
        if not (yield from self.literal('"')):
            return False
        while True:
            if (end := decodable_end(self._buffer, self._at)) > self._at:
                to(decoded(self._take(end)))
            rest = self._buffer[self._at : self._at + LONGEST_ESCAPE]
            if rest.startswith('"'):
                self._take(self._at + 1)
                return True
            if len(rest) == LONGEST_ESCAPE or (rest and self._ended):
                to(self._take(self._at + 2))  # no escape of JSON's: it stays as it is
            elif not (yield from self._more()) and not rest:
                return False

    def json_value(self, to: Sink) -> Reading[bool]:
        """Pass on one JSON value as it is written; return whether it was complete.

        Only strings and brackets are followed, see `ValueScan`: the value may be faulty inside.
        """
        first = yield from self.peek()
        if not first or first not in '"[{':
            return bool((yield from self.take_while(_SCALAR, to)))
        scan = ValueScan()
        while True:
            to(self._take(scan.advance(self._buffer, self._at)))
            if scan.complete is not None:
                return scan.complete
            if not (yield from self._more()):
                to(self._take(len(self._buffer)))
                return False

    def _take(self, end: int) -> str:
        piece = self._buffer[self._at : end]
        self._at += len(piece)
        if self._held is not None:
            self._held.append(piece)
        return piece

    def _more(self) -> Reading[bool]:
        """Wait for the next piece; return whether one came, and not the end."""
        if not self._ended:
            yield
        return not self._ended


@lru_cache(maxsize=256)
def _run_pattern(characters: str) -> re.Pattern[str]:
    return re.compile(f"(?:{characters})*+")


@lru_cache(maxsize=256)  # some formats make tags of the names that a model writes
def _tag_patterns(tags: tuple[str, ...]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return what finds a tag, as group, and what also finds the beginning of one at the end."""
    longest_first = sorted(tags, key=len, reverse=True)
    complete = "|".join(f"({re.escape(tag)})" for tag in longest_first) or r"(?!)"
    or_begun = "|".join(f"({re.escape(tag)})|{_begun(tag)}" for tag in longest_first) or r"(?!)"
    return re.compile(complete), re.compile(or_begun)


def _begun(tag: str) -> str:
    """Return a pattern of the tag cut short by the end of the text: a, ab, ... of abc."""
    pattern = ""
    for character in reversed(tag[1:-1]):
        pattern = f"(?:{re.escape(character)}{pattern})?"
    return rf"{re.escape(tag[0])}{pattern}\Z" if len(tag) > 1 else r"(?!)"
