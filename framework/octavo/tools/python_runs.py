"""Python literals that are plain, read at once as far as they have come.

What is plain ends for certain by what follows it. Of most texts this reads most, so that the steps
of `PythonCalls`, each of which may have to wait, are for the rest.
"""

from __future__ import annotations

import re

from octavo.tools.bare_values import ANY, NAME, as_key, bare_json
from octavo.tools.json_text import encoded
from octavo.tools.reader import Reader

# Groups in possessive repeats fail in Python 3.11: runs are found without, then taken apart.
_QUOTED = r"""'[^'"\\]*+'|"[^'"\\]*+\""""
_BARE = r"(?:[^,:()\[\]{}<]++|\[\]|\(\)|\{\})*+"
_KEY = rf"""(?:{_QUOTED}|(?!['"\s]){_BARE})"""
_VALUE = rf"""(?:{_QUOTED}|\[\s*+\]|\(\s*+\)|\{{\s*+\}}|(?!['"\s(\[{{]){_BARE})"""
_GOES_ON = r",\s*+(?=[^\s)\]}])"
_ELEMENT = re.compile(rf"({_VALUE})\s*+,\s*+")
_ELEMENTS = re.compile(rf"(?:{_VALUE}\s*+{_GOES_ON})++")
_PAIR = re.compile(rf"({_KEY})\s*+(?:(:)\s*+({_VALUE})\s*+)?,\s*+")
_PAIRS = re.compile(rf"(?:{_KEY}\s*+(?::\s*+{_VALUE}\s*+)?{_GOES_ON})++")
_EMPTY = {"[": "[]", "(": "[]", "{": "{}"}

KEY = re.compile(rf"({_KEY})\s*+:\s*+(?=\S)")
"""A key of a dict, and its colon."""
FIRST_KEY = re.compile(rf"\{{\s*+{KEY.pattern}")
ARGUMENT = re.compile(
    rf"""({NAME}++)\s*+=\s*+(?:(?!['"\s(\[{{])({_BARE})\s*+,\s*+(?=[^\s)])"""
    rf"|({_QUOTED}),\s?(?={NAME}{{1,32}}+=))"
)
"""A key and its value, bare or a string, before another argument."""


def plain_elements(reader: Reader) -> str:
    """Read elements of a list, but for its last, as far as they are plain; return their JSON."""
    run = reader.take_at_once(_ELEMENTS)
    return "".join([_value(each) + ", " for each in _ELEMENT.findall(run[0])]) if run else ""


def plain_pairs(reader: Reader) -> str:
    """Read pairs of a dict, but for its last, as far as they are plain; return their JSON."""
    run = reader.take_at_once(_PAIRS)
    pairs = [
        f"{as_key(plain_json(key))}: {_value(value)}, " if colon else f"{plain_json(key)}, "
        for key, colon, value in (_PAIR.findall(run[0]) if run else ())
    ]
    return "".join(pairs)


def plain_json(text: str) -> str:
    """Return the JSON text of a plain string, or of what stands bare."""
    if text[:1] in ("'", '"'):
        return f'"{encoded(text[1:-1])}"'
    return bare_json(text.rstrip(), ANY)


def _value(text: str) -> str:
    return _EMPTY.get(text[:1]) or plain_json(text)
