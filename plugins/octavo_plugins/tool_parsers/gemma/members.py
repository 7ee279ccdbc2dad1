"""Members of a call's arguments and the brackets around them, as far as they need no waiting."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

from octavo.tools.bare_values import ANY, bare_json
from octavo.tools.json_text import encoded

CLOSERS = {"{": "}", "[": "]"}
_OPENERS, _ENDS, _KEY, _OPENER, _MEMBER = 1, 2, 3, 4, 5
"""What the groups of patterns hold."""
_NEXT = r"[\s,]*+(?:([{{\[]++)|{})|"


class Members:
    """Writes the arguments of one call as JSON; an object was opened, the arguments themselves."""

    def __init__(self, close_tag: str, quote: str, types: Callable[[str], frozenset[str]]) -> None:
        self._pairs, self._elements = _patterns(close_tag, quote)
        self._types = types
        self._before = "{"
        """What is to be written before the next member."""
        self.closers = ["}"]
        """Closing signs of the brackets that are open."""

    def next(self) -> str:
        """Begin a member."""
        before, self._before = self._before, ", "
        return before

    def open(self, bracket: str) -> None:
        """Begin an object or a list, as the value of a member that was begun."""
        self._before = bracket
        self.closers.append(CLOSERS[bracket])

    def close(self) -> str:
        """End the last of what is open."""
        before, self._before = self._before, ", "
        return (before if before != ", " else "") + self.closers.pop()

    def types(self, key: str) -> frozenset[str]:
        """Return the types that a value may have."""
        return self._types(key) if len(self.closers) == 1 else ANY

    def plain(self, text: str, at: int) -> tuple[str, int]:
        """Read brackets and members that are plain; return their JSON, and how far they go."""
        parts: list[str] = []
        closers = self.closers
        while closers:
            in_object = closers[-1] == "}"
            match = (self._pairs if in_object else self._elements).match(text, at)
            kind = match.lastindex if match else None
            if match is None or kind is None:
                break
            at = match.end()
            if kind == _MEMBER:
                parts.append(self._before)
                self._before = ", "
                types = ANY
                if in_object:
                    key = match[_KEY].strip()
                    parts.append(f'"{encoded(key)}": ')
                    types = self._types(key) if len(closers) == 1 else ANY
                parts.append(bare_json(match[_MEMBER].strip(), types))
            elif kind == _OPENER:
                parts.append(f'{self._before}"{encoded(match[_KEY].strip())}": ')
                self.open(match[_OPENER])
            elif kind == _OPENERS:
                for opener in match[_OPENERS]:
                    parts.append(self._before + ('"": ' if closers[-1] == "}" else ""))
                    self.open(opener)
            else:
                closer, num_left = match[_ENDS][0], len(match[_ENDS])
                while num_left and closers and closers[-1] == closer:
                    parts.append(self.close())
                    num_left -= 1
                at -= num_left
        return "".join(parts), at


@cache
def _patterns(close_tag: str, quote: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return what finds, in an object and in a list, the brackets or the member that come next.

    A member is found if its value is bare, has no brackets in brackets in brackets, and its end has
    come. Where nothing is found, the match is empty.
    """
    close, string = re.escape(close_tag), re.escape(quote)
    inner = r"[{\[][^{}\[\]<]*+[}\]]"
    nested = rf"[{{\[](?:[^{{}}\[\]<]|{inner})*+[}}\]]"
    bare = rf"[^,{{}}\[\]<]++|(?!{close})<|{nested}"
    no_string = rf"(?!{close}|{string})"
    key = rf"([^:,{{}}\[\]<]*+)(?::\s*+)?+(?!{string})"
    pair = rf"(\}}++)|{no_string}{key}(?:([{{\[])|((?:{bare}|\])*+)(?:,|(?=\}})))"
    element = rf"(\]++)|{no_string}()()((?:{bare}|\}})++)(?:,|(?=\]))"
    return re.compile(_NEXT.format(pair)), re.compile(_NEXT.format(element))
