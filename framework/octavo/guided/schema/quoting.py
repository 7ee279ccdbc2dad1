"""Classes of characters that leave out quotes: some backends confuse these with control characters.

In JSON text both are written with a backslash. A backend that takes a class of all control
characters for one of all escapes lets ``"`` pass where only ``[^"]`` may.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from octavo.guided.schema import regex
from octavo.guided.schema.regex import Alt, Cat, Chars, Regex, Repeat
from octavo.guided.schema.regex_parse import parse_pattern
from octavo.guided.schema.regex_render import REMEMBERED, render

_ESCAPED = frozenset(range(32))
_LINE_FEED = 10
_QUOTES = (ord('"'), ord("\\"))


@lru_cache(maxsize=REMEMBERED)
def leaves_out_quotes(node: Regex) -> bool:
    """Whether some class takes all control characters, but for a line feed, and not all quotes."""
    return any(map(_is_delicate, set(_classes(node))))


def without_nul(core: Any) -> Any:
    """The core schema, with U+0000 taken out of such classes wherever they bind a value.

    Narrower by strings that hold U+0000, and read rightly by backends that confuse the others.
    """
    if isinstance(core, list):
        return [without_nul(item) for item in core]
    if not isinstance(core, dict):
        return core
    found = dict(core)
    for key, item in core.items():
        if key in ("properties", "patternProperties", "$defs"):  # by names, which are no keywords
            found[key] = {name: without_nul(part) for name, part in item.items()}
        elif key not in ("enum", "const"):
            found[key] = without_nul(item)
    if isinstance(pattern := core.get("pattern"), str):
        found["pattern"] = _pattern_without_nul(pattern)
    return found


@lru_cache(maxsize=REMEMBERED)
def _pattern_without_nul(pattern: str) -> str:
    node = parse_pattern(pattern)
    return render(_narrowed(node)) if leaves_out_quotes(node) else pattern


def _is_delicate(found: Chars) -> bool:
    codes = {code for low, high in found.ranges for code in range(low, min(high, 127) + 1)}
    return _ESCAPED - codes <= {_LINE_FEED} and not codes.issuperset(_QUOTES)


def _classes(node: Regex) -> Iterator[Chars]:
    if isinstance(node, Chars):
        yield node
    for child in regex.children(node):
        yield from _classes(child)


def _narrowed(node: Regex) -> Regex:
    match node:
        case Chars(ranges):
            if not _is_delicate(node):
                return node
            return regex.other_chars([(0, 0), *regex.other_chars(ranges).ranges])
        case Cat(parts):
            return regex.cat(*map(_narrowed, parts))
        case Alt(choices):
            return regex.alt(*map(_narrowed, choices))
        case Repeat(part, low, high):
            return regex.repeat(_narrowed(part), low, high)
    return node
