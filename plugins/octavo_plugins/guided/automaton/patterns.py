"""Patterns of users as nodes: read as Rust reads them, which is what llguidance does."""

from __future__ import annotations

from functools import cache

from octavo.guided.schema.regex import Chars, Range
from octavo.guided.schema.regex_parse import Dialect, parse_pattern
from octavo_plugins.guided.automaton.parts import Graph
from octavo_plugins.guided.automaton.strings import plain

_LETTERS = r"\u24B6-\u24E9\u{1F130}-\u{1F149}\u{1F150}-\u{1F169}\u{1F170}-\u{1F189}\u200C\u200D"
"""Characters of words, beside what the categories say."""


def pattern(graph: Graph, value: str, target: int) -> int:
    """What the pattern matches from end to end, then the target."""
    return plain(graph, parse_pattern(f"^(?:{value})$", unicode_dialect()), target)


@cache
def unicode_dialect() -> Dialect:
    r"""That of Rust, where ``\\d``, ``\\w`` and ``\\s`` are of all scripts."""
    return Dialect(
        classes={
            "d": _ranges(r"\p{Nd}"),
            "w": _ranges(rf"\p{{L}}\p{{M}}\p{{Nd}}\p{{Nl}}\p{{Pc}}{_LETTERS}"),
            "s": _ranges(r"\t-\r\x20\x85\xA0\u1680\u2000-\u200A\u2028\u2029\u202F\u205F\u3000"),
        },
        line_ends=[(10, 10)],
        has_plain_classes=False,
    )


def _ranges(members: str) -> list[Range]:
    found = parse_pattern(f"^[{members}]$")
    assert isinstance(found, Chars)
    return list(found.ranges)
