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

_Match: TypeAlias = Callable[..., re.Match[str] | None]
_IN_STRING = frozenset('"\\').isdisjoint
_SCALAR = r"[\w.+\-]"
_SPACES = re.compile(r"\s++")
_HARD_PER_WAITING = 2048
"""Text that a parser has to read on for costs it some microseconds a piece, however short.

So when so many characters of a message were of that kind, one character waits for the next, after
twice as many two, and so on: a message of any length costs little more than if it came whole.
"""


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
        self._run: tuple[Callable[[str], object], Sink] | None = None
        """What tells whether a piece only goes on with a stretch of text, and what takes it then.

        It saves most pieces of a token or a character the way through the parser.
        """
        self._begun: frozenset[str] | None = None
        """Beginnings of tags: while what is unread is one of them, the parser has to wait."""
        self._recorded: list[str] | None = None
        """Text from `record` on, what is unread included."""
        self._num_hard = 0
        """Characters that the parser was made to read on for."""
        self._num_waiting = 0
        """Characters that wait for more to come, see `_HARD_PER_WAITING`."""

    def append(self, text: str) -> bool:
        """Add the next piece of the message; for the stream that drives the parser.

        Return whether the parser must read on: False where the piece was passed on at once, or
        waits for more.
        """
        if self._recorded is not None:
            self._recorded.append(text)
        if self._run is not None:
            goes_on, to = self._run
            if goes_on(text):
                if self._held is not None:
                    self._held.append(text)
                to(text)
                return False
            self._run = None
        rest = self._buffer[self._at :]
        self._buffer = rest + text if rest else text
        self._at = 0
        if self._begun is not None:
            if self._buffer in self._begun:
                return False
            self._begun = None
        self._num_waiting += len(text)
        if self._num_waiting * _HARD_PER_WAITING <= self._num_hard:
            return False
        self._num_hard += self._num_waiting
        self._num_waiting = 0
        return True

    def end(self) -> None:
        """Say that no piece comes any more; for the stream that drives the parser."""
        self._ended = True

    def record(self) -> None:
        """Keep a copy of what is read from here on, for ``recorded``."""
        self._recorded = [self._buffer[self._at :]]

    def recorded(self) -> str:
        """Return what was read since ``record``."""
        text, self._recorded = "".join(self._recorded or ()), None
        return text[: len(text) - (len(self._buffer) - self._at)]

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

    def begin_call(self, name: str, id: str | None = None) -> Sink:
        """Begin a call; return what takes its arguments."""
        self.call(name, id)
        return self.arguments

    def text_until(self, *tags: str, to: Sink | None = None) -> Reading[str | None]:
        """Pass text on up to the first of the tags, or the end; return the tag, now behind us.

        Without ``to`` the text is content. Where two tags begin at one place the longer one counts.
        """
        to = to or self.content
        complete, or_begun, has_no_begin, begun = _tag_patterns(tags)
        while True:
            match = (complete if self._ended else or_begun).search(self._buffer, self._at)
            end = match.start() if match else len(self._buffer)
            if end > self._at:
                to(self._take(end))
            if match is None:
                self._run = has_no_begin, to
            elif match.lastindex:
                return self._take(match.end())
            else:
                self._begun = begun
            if self._ended:
                return None
            yield

    def read_until(self, *tags: str) -> Reading[tuple[str, str | None]]:
        """Read text up to the first of the tags, or the end; return both, now behind us."""
        parts: list[str] = []
        tag = yield from self.text_until(*tags, to=parts.append)
        return "".join(parts), tag

    def literal(self, *texts: str) -> Reading[str | None]:
        """Read one of these texts, the longest that is next; None: none is, nothing was read."""
        if len(texts) == 1:
            end = self._at + len(texts[0])
            if self._buffer.startswith(texts[0], self._at):
                return self._take(end)
            if end <= len(self._buffer):
                return None
        complete, or_begun, _, begun = _tag_patterns(texts)
        while True:
            match = (complete if self._ended else or_begun).match(self._buffer, self._at)
            if match and match.lastindex:
                return self._take(match.end())
            if self._ended or (match is None and self._at < len(self._buffer)):
                return None
            self._begun = begun
            yield

    @property
    def ahead(self) -> str:
        """The next character, "" while it has not come: ``peek`` for loops that must be fast.

        ``reader.ahead or (yield from reader.peek())`` is what ``peek`` returns.
        """
        return self._buffer[self._at : self._at + 1]

    def take_at_once(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Read what matches in the text that has come; None: nothing does, or not yet.

        This depends on where a piece ends: it is for what would be read to the same end without it.
        """
        match = pattern.match(self._buffer, self._at)
        if match:  # as `_take` does, of which there are many
            self._at = match.end()
            if self._held is not None:
                self._held.append(match[0])
        return match

    def coming(self, count: int) -> str:
        """Return the next characters as far as they have come; they stay unread."""
        return self._buffer[self._at : self._at + count]

    def scan(self, read: Callable[[str, int], tuple[T, int]]) -> T:
        """Let ``read(text, at)`` read in the text that has come from ``at`` on; see `take_at_once`.

        It returns its result and where it ended.
        """
        result, end = read(self._buffer, self._at)
        self._take(end)
        return result

    def take_nested(self, marks: re.Pattern[str], stops: str, depth: int) -> tuple[str, int]:
        """Read what has come up to one of ``stops`` outside of brackets, or to a "<".

        ``marks`` finds those and brackets; ``depth`` of them are open. Return the text, and how
        many are open behind it. It depends on where a piece ends as `take_at_once` does.
        """
        end = len(self._buffer)
        for match in marks.finditer(self._buffer, self._at):
            mark = match[0]
            if mark == "<" or (depth == 0 and mark in stops):
                end = match.start()
                break
            if mark in "([{":
                depth += 1
            elif mark in ")]}" and depth:
                depth -= 1
        return self._take(end), depth

    def peek(self, count: int = 1) -> Reading[str]:
        """Return the next characters, fewer at the end of the text; they stay unread."""
        while len(self._buffer) - self._at < count and not self._ended:
            yield
        return self._buffer[self._at : self._at + count]

    def take(self, count: int) -> Reading[str]:
        """Read the next characters, fewer at the end of the text."""
        while len(self._buffer) - self._at < count and not self._ended:
            yield
        return self._take(self._at + count)

    def take_while(self, characters: str, to: Sink | None = None) -> Reading[str]:
        """Read as long as characters of a class such as ``[a-z]`` come; return what was read.

        ``to`` also gets it, as it comes.
        """
        run, is_run = _run_pattern(characters)
        match = run(self._buffer, self._at)
        if match and (match.end() < len(self._buffer) or self._ended):  # as a rule
            piece = self._take(match.end())
            if to:
                to(piece)
            return piece
        parts: list[str] = []

        def take(text: str) -> None:
            parts.append(text)
            if to:
                to(text)

        while True:
            match = run(self._buffer, self._at)
            assert match is not None
            if match.end() > self._at:
                take(self._take(match.end()))
            if self._at < len(self._buffer) or self._ended:
                return "".join(parts)
            self._run = is_run, take
            yield

    def spaces(self) -> Reading[None]:
        """Read white space, if any is next."""
        while True:
            if self._buffer[self._at : self._at + 1].isspace():
                match = _SPACES.match(self._buffer, self._at)
                assert match is not None
                self._take(match.end())
            if self._at < len(self._buffer) or self._ended:
                return
            self._run = str.isspace, ignore
            yield

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
            elif self._ended:
                return False
            else:
                if not rest:
                    self._run = _IN_STRING, lambda text: to(decoded(text))
                yield

    def json_value(self, to: Sink, *, depth: int = 0) -> Reading[bool]:
        """Pass on one JSON value as it is written; return whether it was complete.

        Only strings and brackets are followed, see `ValueScan`: the value may be faulty inside.
        Of its brackets ``depth`` have been read.
        """
        first = yield from self.peek()
        if not depth and (not first or first not in '"[{'):
            return bool((yield from self.take_while(_SCALAR, to)))
        scan = ValueScan(depth)
        while True:
            if (end := scan.advance(self._buffer, self._at)) > self._at:
                to(self._take(end))
            if scan.complete is not None:
                return scan.complete
            if self._ended:
                to(self._take(len(self._buffer)))
                return False
            if self._at == len(self._buffer):
                self._run = scan.goes_on, to
            yield

    def _take(self, end: int) -> str:
        piece = self._buffer[self._at : end]
        self._at = end if end < len(self._buffer) else len(self._buffer)
        if self._held is not None:
            self._held.append(piece)
        return piece


@lru_cache(maxsize=256)
def _run_pattern(characters: str) -> tuple[_Match, _Match]:
    """Return what finds a run, and what tells whether a text is nothing else."""
    run = re.compile(f"(?:{characters})*+")
    return run.match, run.fullmatch


@lru_cache(maxsize=256)  # some formats make tags of the names that a model writes
def _tag_patterns(
    tags: tuple[str, ...],
) -> tuple[re.Pattern[str], re.Pattern[str], Callable[[str], bool], frozenset[str]]:
    """Return what looks for tags.

    The first finds a tag, as group; the second also the beginning of one at the end; the third
    tells whether a text has no tag's first character; the last are all beginnings.
    """
    longest_first = sorted(tags, key=len, reverse=True)
    complete = "|".join(f"({re.escape(tag)})" for tag in longest_first) or r"(?!)"
    or_begun = "|".join(f"({re.escape(tag)})|{_begun(tag)}" for tag in longest_first) or r"(?!)"
    first_characters = frozenset(tag[0] for tag in tags)
    begun = frozenset(tag[:end] for tag in tags for end in range(1, len(tag)))
    return re.compile(complete), re.compile(or_begun), first_characters.isdisjoint, begun


def _begun(tag: str) -> str:
    """Return a pattern of the tag cut short by the end of the text: a, ab, ... of abc."""
    pattern = ""
    for character in reversed(tag[1:-1]):
        pattern = f"(?:{re.escape(character)}{pattern})?"
    return rf"{re.escape(tag[0])}{pattern}\Z" if len(tag) > 1 else r"(?!)"
