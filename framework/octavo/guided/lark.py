"""The words of a grammar in llguidance's Lark, and the JSON schemas that stand in it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from octavo.errors import ParameterError

_WORD = re.compile(
    r"""
    (?P<skipped>(?:\#|//)[^\n]*|[ \t]+)
    |(?P<text>"(?:\\(?:["\\/bfnrt]|u[a-fA-F0-9]{4}|x[a-fA-F0-9]{2})|[^"\\\x00-\x1F\x7F])*"i?)
    |(?P<pattern>/(?:\\.|[^/\\])+/[imslux]*)
    |(?P<token><[^<>\s]+>)
    |(?P<json>%(?:json|regex|llguidance))
    |(?P<keyword>%(?:declare|ignore|import|override|lark|if))
    |(?P<grammar>@[a-zA-Z0-9_\-]+)
    |(?P<name>!?[_?]?[a-z][_a-z0-9\-]*|_?[A-Z][_A-Z0-9\-]*)
    |(?P<newline>(?:\r?\n)+[ \t]*)
    |(?P<mark>[^"/<])
    """,
    re.VERBOSE,
)
"""As the library's own lexer has them, but for numbers and operators, which are marks here."""
_SPACE = re.compile(r"[ \t\r\n]*")


class Word(NamedTuple):
    """One word of a grammar, or a word that JSON follows, with the JSON."""

    kind: str
    text: str
    begin: int
    end: int
    value: Any = None


def words(grammar: str) -> Iterator[Word]:
    """All but comments and blanks; raises where none can be read, as the library would."""
    place = 0
    while place < len(grammar):
        found = _WORD.match(grammar, place)
        if found is None:
            line = grammar.count("\n", 0, place) + 1
            raise _refused(f"cannot be read in line {line}: {grammar[place : place + 20]!r}")
        kind, begin, place = found.lastgroup or "", place, found.end()
        if kind == "json":
            value, place = _json(grammar, place)
            yield Word(kind, found.group(), begin, place, value)
        elif kind != "skipped":
            yield Word(kind, found.group(), begin, place)


def with_schemas(grammar: str, replaced: Callable[[Any], Any]) -> str:
    """The grammar with other schemas in the place of those behind ``%json``."""
    if "%json" not in grammar:
        return grammar
    pieces: list[str] = []
    place = 0
    for word in words(grammar):
        if word.text == "%json":
            schema = json.dumps(replaced(word.value))
            pieces += [grammar[place : word.begin], "%json ", schema]
            place = word.end
    return "".join([*pieces, grammar[place:]])


def _json(grammar: str, place: int) -> tuple[Any, int]:
    decoder = json.JSONDecoder(parse_constant=_no_constant)
    space = _SPACE.match(grammar, place)
    try:
        return decoder.raw_decode(grammar, space.end() if space else place)
    except (ValueError, RecursionError) as error:
        line = grammar.count("\n", 0, place) + 1
        raise _refused(f"has what is no JSON in line {line}: {error}") from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _refused(problem: str) -> ParameterError:
    return ParameterError(f"grammar {problem}", param="grammar")
