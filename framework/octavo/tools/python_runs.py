"""Python literals that are plain, read at once as far as they have come.

What is plain ends for certain by what follows it. Of most texts this reads most, so that the steps
of `PythonCalls`, each of which may have to wait, are for the rest.
"""

from __future__ import annotations

import re
from functools import cache

from octavo.tools.bare_values import ANY, NAME, as_key, bare_json
from octavo.tools.python_strings import quoted, text_inside
from octavo.tools.reader import Reader

# Groups in possessive repeats fail in Python 3.11: runs are found without, then taken apart.
_QUOTED = quoted(is_argument=False)
_EMPTY = {"[": "[]", "(": "[]", "{": "{}"}


class PlainLiterals:
    """Finds what is plain, where ``ends`` are tags that end a call."""

    def __init__(self, ends: tuple[str, ...]) -> None:
        no_end = "".join(f"(?!{re.escape(end)})" for end in ends)

        def bare(also: str) -> str:
            """What has no mark but ``also``, which mean nothing where it stands, and brackets."""
            return rf"(?:[^,:()\[\]{{}}<]++|[{also}]|{no_end}<|\[\]|\(\)|\{{\}})*+"

        def value(also: str) -> str:
            empty = r"\[\s*+\]|\(\s*+\)|\{\s*+\}"
            return rf"""(?:{_QUOTED}|{empty}|(?!['"\s(\[{{]){bare(also)})"""

        self._elements = {
            closer: (
                re.compile(rf"(?:{value(also)}\s*+,\s*+(?=[^\s{re.escape(closer)}]))++"),
                re.compile(rf"({value(also)})\s*+,\s*+"),
            )
            for closer, also in (("]", ":)}"), (")", r":\]}"), ("}", r":)\]"))
        }
        in_key, in_argument = bare(r")\]"), bare(r":\]}")
        key = rf"""(?:{_QUOTED}|(?!['"\s]){in_key})"""
        of_key = value(r":)\]")
        self._pairs = re.compile(rf"(?:{key}\s*+(?::\s*+{of_key}\s*+)?+,\s*+(?=[^\s}}]))++")
        self._pair = re.compile(rf"({key})\s*+(?:(:)\s*+({of_key})\s*+)?,\s*+")
        self.key = re.compile(rf"({key})\s*+:\s*+(?=\S)")
        """A key of a dict, and its colon."""
        self.first = re.compile(rf"\{{\s*+({key})\s*+(?::\s*+(?=\S)|(,)\s*+(?=[^\s}}]))")
        """A curly bracket with the first key of its dict, or the first element of its set."""
        self.argument = re.compile(
            rf"""({NAME}++)\s*+=\s*+(?:(?!['"\s(\[{{])({in_argument})\s*+,\s*+(?=[^\s)])"""
            rf"|({quoted(is_argument=True)}),\s?(?={NAME}{{1,32}}+=))"
        )
        """A key and its value, bare or a string, before another argument."""

    def elements(self, reader: Reader, closer: str) -> str:
        """Read elements of a list up to its last, as far as they are plain; return their JSON."""
        several, each = self._elements[closer]
        run = reader.take_at_once(several)
        found = each.findall(run[0]) if run else ()
        return "".join([_value(text) + ", " for text in found])

    def pairs(self, reader: Reader) -> str:
        """Read pairs of a dict, but for its last, as far as they are plain; return their JSON."""
        run = reader.take_at_once(self._pairs)
        pairs = [
            f"{as_key(plain_json(key))}: {_value(value)}, " if colon else f"{plain_json(key)}, "
            for key, colon, value in (self._pair.findall(run[0]) if run else ())
        ]
        return "".join(pairs)


@cache
def plain_literals(ends: tuple[str, ...]) -> PlainLiterals:
    """Return what finds them; patterns are compiled once."""
    return PlainLiterals(ends)


def plain_json(text: str) -> str:
    """Return the JSON text of a plain string, or of what stands bare."""
    if text[:1] in ("'", '"'):
        return f'"{text_inside(text[1:-1])}"'
    return bare_json(text.rstrip(), ANY)


def _value(text: str) -> str:
    return _EMPTY.get(text[:1]) or plain_json(text)
