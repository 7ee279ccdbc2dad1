"""A chat's strings in private characters: of what a template then writes nothing else is theirs.

Whatever operations do to such a string, no character of a control token comes of it. Its length is
kept, and so are blanks, the words that the template asks for, and what JSON escapes.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection
from typing import Any, Final

from octavo.errors import MessageError

_FIRST: Final = 0xF0000
_LAST: Final = 0x10FFFD
_KEPT: Final = '"\\'
_LONGEST: Final = 64
"""A constant of more characters is nothing that a template looks for in a text."""
_ESCAPED: Final = re.compile(
    r"\\U00(0f|10)([0-9a-f]{4})|\\u(db[8-9a-f][0-9a-f])\\u(d[c-f][0-9a-f]{2})"
)
"""As Python and JSON write such characters."""

_KEYS: Final = frozenset(
    ("role", "content", "type", "text", "refusal", "tool_calls", "function", "name", "arguments",
     "id", "tool_call_id", "reasoning_content", "thinking", "reasoning")
)  # fmt: skip
"""Keys of messages, which are made to fit the template before it reads them."""
_TYPE: Final = re.compile(r"\w+")


class Words:
    """What of a chat's strings a template asks for."""

    def __init__(self, names: Collection[str], controls: Collection[str]) -> None:
        """``names`` are the template's constants; what is a part of a control token is kept only
        where it is a key or a type.
        """
        whole = "\n".join(controls)
        ends = {text[0] for text in controls} | {text[-1] for text in controls}
        self.names = names
        self.safe = {
            name
            for name in names
            if 1 < len(name) <= _LONGEST and name not in whole and ends.isdisjoint(name)
        }

    def pattern(self, tokens: Collection[str] = ()) -> re.Pattern[str]:
        """Matches what is kept wherever it stands: safe words, and ``tokens``."""
        found = sorted((*tokens, *self.safe), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, found)) or r"(?!)")


class Cover:
    """Covers the strings of one chat, and makes a text of what was rendered with them."""

    def __init__(self, words: Words) -> None:
        self._words = words
        self._private = _Private()

    def name(self, text: str, known: Collection[str] = _KEYS) -> str:
        """Cover a key or role, unless it is one that the template knows, or ``known``."""
        is_known = text in known or text in self._words.names
        return text if is_known else text.translate(self._private)

    def value(self, value: Any, kept: re.Pattern[str]) -> Any:
        """Return a copy with all strings covered, but where ``kept`` matches."""
        if isinstance(value, str):
            return self._text(value, kept)
        if isinstance(value, dict):
            return {
                self.name(key): each
                if key == "type" and isinstance(each, str) and _TYPE.fullmatch(each)
                else self.value(each, kept)
                for key, each in value.items()
            }
        if isinstance(value, list):
            return [self.value(each, kept) for each in value]
        return value

    def uncovered(self, text: str) -> str:
        """Return a rendered text with private characters where the template has escaped them."""
        return _ESCAPED.sub(_unescaped, text)

    def restored(self, text: str) -> str:
        """Return a text as it is without the cover, character for character."""
        return text.translate({ord(there): chr(code) for code, there in self._private.items()})

    def _text(self, text: str, kept: re.Pattern[str]) -> str:
        pieces, end = [], 0
        for found in kept.finditer(text):
            pieces += [text[end : found.start()].translate(self._private), found[0]]
            end = found.end()
        return "".join(pieces) + text[end:].translate(self._private)


class _Private(dict[int, str]):
    """A private character for each, at random places."""

    def __init__(self) -> None:
        super().__init__()
        self._next = _FIRST + secrets.randbelow(0x8000)

    def __missing__(self, code: int) -> str:
        char = chr(code)
        if char.isspace() or char in _KEPT:
            return char
        if self._next > _LAST:
            raise MessageError("the messages have more kinds of characters than there are")
        made = self[code] = chr(self._next)
        self._next += 3 if self._next & 0xFFFF == 0xFFFD else 1  # the last two of a plane are none
        return made


def _unescaped(found: re.Match[str]) -> str:
    plane, rest, high, low = found.groups()
    if plane is not None:
        return chr(int(plane + rest, 16))
    return chr(0x10000 + ((int(high, 16) - 0xD800) << 10) + int(low, 16) - 0xDC00)
