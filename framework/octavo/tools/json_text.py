"""The text of JSON strings: decoded, also in parts, and encoded."""

from __future__ import annotations

import json
import re
from json.encoder import encode_basestring

_TOKEN = re.compile(r'[\[{]++|[\]}]++|["<]')
_IN_STRING = re.compile(r'(?:[^"\\]++|\\.)*+', re.DOTALL)
WHOLE_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_NO_STRING_END = frozenset('"\\').isdisjoint
_NO_TOKEN = frozenset('[]{}"<').isdisjoint
LONGEST_ESCAPE = len(r"\ud83d\ude00")

_DECODABLE = re.compile(
    r"""(?:[^"\\]++ | \\ (?:["\\/bfnrt] | u (?:
            [dD][89abAB][0-9a-fA-F]{2} \\u [dD][c-fC-F][0-9a-fA-F]{2}  # one character in two halves
          | (?![dD][89a-fA-F])[0-9a-fA-F]{4} )))*+""",
    re.VERBOSE,
)


def decodable_end(text: str, start: int) -> int:
    """Return how far ``text``, which is inside a JSON string, can be decoded for certain."""
    match = _DECODABLE.match(text, start)
    assert match is not None
    return match.end()


def decoded(text: str) -> str:
    """Return what the inside of a JSON string says; line breaks may stand for themselves."""
    if "\\" not in text:  # it says itself; pieces may be single characters
        return text
    return str(json.loads(f'"{text}"', strict=False))


def decoded_string(text: str) -> str | None:
    """Return what a JSON string, with its quotes, says; None: it is none."""
    end = decodable_end(text, 1)
    return decoded(text[1:end]) if text[end:] == '"' else None


def encoded(text: str) -> str:
    """Return the inside of the JSON string that says ``text``; parts may be encoded by parts."""
    return encode_basestring(text)[1:-1]


class ValueScan:
    """Finds the end of a JSON string, array or object that comes in pieces.

    Brackets and strings are followed, nothing else is checked, so that a value with a small fault
    stays whole. Outside its strings JSON has no "<": there a value that lacks its end has ended.
    """

    def __init__(self, depth: int = 0) -> None:
        """Begin where ``depth`` brackets are open."""
        self._depth = depth
        self._in_string = False
        self._escapes = False
        """Whether a backslash in a string came last."""
        self.complete: bool | None = None
        """Whether the value has its end; None: that has not come yet."""

    def advance(self, text: str, start: int) -> int:
        """Return how far the value goes, in a text that goes on from where it ended last."""
        at = start
        while at < len(text) and self.complete is None:
            if self._escapes:
                at += 1
                self._escapes = False
            elif self._in_string:
                match = _IN_STRING.match(text, at)
                assert match is not None
                at = match.end() + 1
                last = text[match.end() : at]
                if not last:
                    return len(text)
                self._escapes = last == "\\"
                self._in_string = self._escapes
                self._may_be_complete()
            elif (match := _TOKEN.search(text, at)) is None:
                return len(text)
            else:
                at = self._after(match)
        return at

    def goes_on(self, text: str) -> bool:
        """Take a short text and return True if it is clear that the value has not ended with it."""
        if self._escapes:
            self._escapes = len(text) > 1
            return not self._escapes
        if self._in_string:
            if text == '"' and self._depth:
                self._in_string = False
                return True
            self._escapes = text == "\\"
            return self._escapes or _NO_STRING_END(text)
        if text in "[{":
            self._depth += len(text)
        elif text in "]}" and self._depth > len(text):
            self._depth -= len(text)
        elif text == '"':
            self._in_string = True
        else:
            return _NO_TOKEN(text)
        return True

    def _after(self, match: re.Match[str]) -> int:
        token = match[0]
        if token == "<":
            self.complete = False
            return match.start()
        if token == '"':
            self._in_string = True
            return match.end()
        if token[0] in "[{":
            self._depth += len(token)
            return match.end()
        num_closed = min(self._depth, len(token))
        self._depth -= num_closed
        self._may_be_complete()
        return match.start() + num_closed

    def _may_be_complete(self) -> None:
        if self._depth == 0 and not self._in_string:
            self.complete = True
