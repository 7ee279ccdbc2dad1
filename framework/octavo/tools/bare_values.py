"""Values without quotes, as Python's notation and Gemma's have them, made JSON text."""

from __future__ import annotations

import math
import re
from functools import cache

from octavo.tools.json_text import encoded
from octavo.tools.parameters import STRING

NAME = r"[\w.\-]"
"""A character of a name: more than Python's, as tools may be called ``a-b`` and ``a.b``."""
ANY: frozenset[str] = frozenset()

_NULLS = ("None", "null")
_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false"}
_JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?")
_DIGITS = r"\d++(?:_\d++)*+"
_PYTHON_NUMBER = re.compile(
    rf"""[+-]?(?:
        (?P<integer>{_DIGITS} | \d[bBoOxX](?:_?[\da-fA-F])++)
      | (?:{_DIGITS}\.?(?:{_DIGITS})? | \.{_DIGITS})(?:[eE][+-]?{_DIGITS})? )""",
    re.VERBOSE,
)


def bare_json(text: str, types: frozenset[str]) -> str:
    """Return the JSON text of what is no string by its look: but where types say so it is one."""
    if text in _NULLS:
        return "null"
    if types == STRING or not text:
        return f'"{encoded(text)}"' if text else ""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] in "+-." or text[0].isdecimal():  # patterns are slow, and most texts are no number
        number = text if _JSON_NUMBER.fullmatch(text) else _python_number(text)
        if number:
            return number
    return f'"{encoded(text)}"'


@cache
def nesting_marks(marks: str, ends: tuple[str, ...]) -> re.Pattern[str]:
    """Return what finds ``marks``, brackets, and each "<" that may begin one of ``ends``."""
    begins = "".join(rf"|<(?={re.escape(end[1])}|\Z)" for end in ends)
    return re.compile(rf"[{marks}\[\]{{}}]{begins}")


def as_key(json_text: str) -> str:
    """Return the JSON of a key that was written as this value."""
    return json_text if json_text.startswith('"') else f'"{json_text}"'


def _python_number(text: str) -> str | None:
    match = _PYTHON_NUMBER.fullmatch(text)  # exceptions are slow
    if match is None:
        return None
    if match["integer"]:
        for base in (10, 0):
            try:
                return str(int(text, base))
            except ValueError:
                continue
    try:
        value = float(text)
    except ValueError:
        return None
    return str(value) if math.isfinite(value) else None
