"""Numbers within bounds, and multiples of a number, as nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

from octavo.errors import UnsupportedConstraint
from octavo.guided.schema import regex
from octavo.guided.schema.number_text import integers, numbers
from octavo.guided.schema.regex import Regex
from octavo_plugins.guided.automaton.parts import Graph, byte_set
from octavo_plugins.guided.automaton.strings import plain

MOST_STATES = 4096
MOST_DIGITS = 400
"""Digits of a bound, before and behind the point; all floats have fewer."""
_BOUNDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
_ANY = numbers({})
_SIGN = regex.alt(regex.EMPTY_TEXT, regex.text("-"))
_DIGIT = regex.chars([(48, 57)])
_WHOLE = regex.alt(
    regex.text("0"), regex.cat(regex.chars([(49, 57)]), regex.repeat(_DIGIT, 0, None))
)
_FRACTION = regex.cat(regex.text("."), _DIGIT, regex.repeat(_DIGIT, 0, None))
_ANY_WHOLE = regex.cat(_SIGN, _WHOLE)
_ANY_DECIMAL = regex.cat(_SIGN, _WHOLE, regex.alt(regex.EMPTY_TEXT, _FRACTION))


def number(graph: Graph, core: Mapping[str, Any], target: int) -> int:
    """A number of a core schema, then the target."""
    is_whole, bounds = core["type"] == "integer", core.keys() & _BOUNDS
    if bounds:
        _check_digits(core, bounds)
        texts = integers(core) if is_whole else numbers(core)
    elif is_whole:
        texts = _ANY_WHOLE
    else:
        texts = _ANY_DECIMAL if "multipleOf" in core else _ANY
    if "multipleOf" in core:
        return _multiples(graph, texts, Fraction(Decimal(repr(core["multipleOf"]))), target)
    return plain(graph, texts, target)


def _check_digits(core: Mapping[str, Any], bounds: Iterable[str]) -> None:
    for name in sorted(bounds):
        whole, _, fraction = f"{abs(Decimal(repr(core[name]))):f}".partition(".")
        if max(len(whole), len(fraction)) > MOST_DIGITS:
            raise UnsupportedConstraint(f"{name} has more than {MOST_DIGITS} digits")


class _Read(NamedTuple):
    """What matters of the digits so far."""

    places: int
    """Digits behind the point; -1: there is none yet."""
    rest: int


class _Multiple:
    """A multiple of ``step / 10 ** places``, written with no more places than that."""

    def __init__(self, step: Fraction) -> None:
        self.places = 0
        while (step * 10**self.places).denominator != 1:
            self.places += 1
        self.step = int(step * 10**self.places)
        self._tens: list[int] = [10**num for num in range(self.places, -1, -1)]

    def behind(self, read: _Read, char: int) -> _Read | None:
        if char == ord("-"):
            return read
        if char == ord("."):
            return _Read(0, read.rest) if self.places else None
        if read.places == self.places and read.places >= 0:
            return None
        rest = (10 * read.rest + char - 48) % self.step
        return _Read(read.places + 1 if read.places >= 0 else -1, rest)

    def is_one(self, read: _Read) -> bool:
        return read.rest * self._tens[max(read.places, 0)] % self.step == 0


def _multiples(graph: Graph, texts: Regex, step: Fraction, target: int) -> int:
    """Accept the numbers that are multiples: both automata side by side."""
    multiple = _Multiple(step)
    begin = (texts, _Read(-1, 0))
    places = {begin: graph.place()}
    waiting = [begin]
    while waiting:
        state = waiting.pop()
        node, read = state
        nodes = [target] if node.nullable and multiple.is_one(read) else []
        by_place: dict[int, list[int]] = {}
        for char, behind in _digits(node):
            after = multiple.behind(read, char)
            if after is None:
                continue
            if (behind, after) not in places:
                if len(places) == MOST_STATES:
                    raise UnsupportedConstraint("multipleOf: it has too many states for a table")
                places[behind, after] = graph.place()
                waiting.append((behind, after))
            by_place.setdefault(places[behind, after], []).append(char)
        nodes += [graph.step(byte_set(chars), place) for place, chars in by_place.items()]
        graph.fill(places[state], *nodes)
    return places[begin]


def _digits(node: Regex) -> Iterator[tuple[int, Regex]]:
    for label, behind in node.steps:
        for low, high in label.ranges:
            for char in range(low, high + 1):
                yield char, behind
