"""Strings of a constraint that may be too much for a lexer, though little of it is to be read.

A pattern and a length, or counts inside counts, hold at once: their states multiply, and a library
that makes them as it reads comes to its limit in the middle of a text.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

from octavo.guided.lark import with_schemas
from octavo.guided.schema.regex import Chars, Regex, Repeat, TooManyStates, children, num_unrolled
from octavo.guided.schema.regex_parse import PatternError, parse_pattern
from octavo_registry.guided import Constraint

MANY_STATES: Final = 1500
"""Characters of a length by those of a pattern; fewer were never too much, 3 by 600 are."""
MANY_REPEATED: Final = 64
"""Characters of a pattern's part that is counted; ``a.{0,100}b`` is too much after some steps."""


def hard_strings(constraint: Constraint) -> list[Constraint]:
    """List each alone, once: a walk through a document comes to few of its strings."""
    found: list[Constraint] = []
    if constraint.kind == "regex":
        found = [constraint] if _is_hard(constraint.value, 1) else []
    elif constraint.kind == "grammar":
        with_schemas(constraint.value, lambda schema: found.extend(_hard_parts(schema)))
    elif constraint.kind != "choice":
        found = list(_hard_parts(constraint.value))
    return [each for place, each in enumerate(found) if each not in found[:place]]


def _hard_parts(value: Any) -> Iterator[Constraint]:
    """Yield those of a core schema, or of a structure as ``plain`` writes it."""
    waiting = [value]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            waiting += node
        if not isinstance(node, dict):
            continue
        waiting += node.values()
        names = node.get("patternProperties")
        for name in names if isinstance(names, dict) else ():
            if _is_hard(name, 1):
                yield Constraint(kind="json", value={"type": "string", "pattern": name})
        pattern = node.get("pattern")
        if not isinstance(pattern, str):
            continue
        if node.get("kind") == "RegexText" and _is_hard(pattern, 1):
            yield Constraint(kind="regex", value=pattern)
        elif node.get("type") == "string" and _is_hard(pattern, _most_characters(node)):
            yield Constraint(kind="json", value=node)


def _most_characters(string: dict[str, Any]) -> int:
    most: int = max(1, string.get("minLength", 0), string.get("maxLength", 0))
    return most


def _is_hard(pattern: str, length: int) -> bool:
    if length == 1 and "{" not in pattern:
        return False
    size, repeated = _sizes(pattern)
    return repeated > MANY_REPEATED or (length > 1 and length * size > MANY_STATES)


@lru_cache(maxsize=1024)
def _sizes(pattern: str) -> tuple[int, int]:
    """How large it is with its counts written out, and the largest part of it that counts."""
    try:
        node = parse_pattern(pattern)
    except (PatternError, TooManyStates, RecursionError):  # which is not known
        return MANY_STATES, MANY_REPEATED + 1
    if isinstance(node, Repeat) and isinstance(node.part, Chars):
        return 0, 0  # any number of the same is no work
    return num_unrolled(node), _most_repeated(node)


def _most_repeated(node: Regex) -> int:
    if isinstance(node, Repeat) and max(node.low, node.high or 0) > 1:
        return num_unrolled(node)
    return max(map(_most_repeated, children(node)), default=0)
