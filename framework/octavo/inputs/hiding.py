"""Characters of a chat that are hidden behind private ones while a template runs."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable
from typing import Final

from octavo.errors import PromptError

_FIRST_PRIVATE: Final = 0x100000
_NUM_PRIVATE: Final = 0xFFFE
"""A chat's private characters are some of plane 16 that it has not itself, from a random one on."""
_PRIVATE: Final = re.compile(f"[{chr(_FIRST_PRIVATE)}-{chr(_FIRST_PRIVATE + _NUM_PRIVATE - 1)}]")


class Hidden:
    """The characters of one chat that are hidden, each behind a private one."""

    def __init__(self, contents: Iterable[str]) -> None:
        taken = set(_PRIVATE.findall("".join(contents)))
        begin = secrets.randbelow(_NUM_PRIVATE)
        every = (
            chr(_FIRST_PRIVATE + (begin + step) % _NUM_PRIVATE) for step in range(_NUM_PRIVATE)
        )
        self._free = (char for char in every if char not in taken)
        self._private: dict[str, str] = {}

    def character(self, char: str) -> str:
        """Stands for ``char`` until it is restored."""
        if char not in self._private:
            private = next(self._free, None)
            if private is None:
                raise PromptError(
                    "the messages have control tokens, and all private characters of Unicode's "
                    "plane 16, behind which these would be hidden: leave either out"
                )
            self._private[char] = private
        return self._private[char]

    def unescaped(self, text: str) -> str:
        """``text`` with private characters where a template has written them as JSON or Python."""
        for private in self._private.values():
            text = text.replace(json.dumps(private)[1:-1], private)
            text = text.replace(repr(private)[1:-1], private)
        return text

    def restored(self, text: str) -> str:
        """``text`` as it is without hiding."""
        return text.translate({ord(there): char for char, there in self._private.items()})
