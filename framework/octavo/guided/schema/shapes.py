"""Clauses as shapes that a backend can be asked to enforce; what has none is refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

from octavo.guided.schema import regex
from octavo.guided.schema.array_shapes import array_shapes
from octavo.guided.schema.clauses import Clause
from octavo.guided.schema.containers import Arrays, Objects, State
from octavo.guided.schema.meaning import Meaning
from octavo.guided.schema.object_shapes import object_shapes
from octavo.guided.schema.regex_plain import plain
from octavo.guided.schema.scalars import Numbers, Strings
from octavo.guided.schema.shape_types import (
    ArrayShape,
    NumberShape,
    ObjectShape,
    Shape,
    StringShape,
    ValueShape,
)
from octavo.guided.schema.source import unsupported
from octavo.guided.schema.values import exact, identity, written


def shapes_of(meaning: Meaning, state: State) -> list[Shape]:
    """Every alternative of a state, of all types."""
    scalars: list[Any] = []
    found: list[Shape] = []
    for kind in meaning.kinds(state):
        for clause in meaning.clauses(state, kind):
            if clause.values is None:
                found += _of_clause(meaning, clause)
            elif kind in ("array", "object"):
                found += (_of_value(meaning, value) for value in clause.values)
            else:
                scalars += clause.values
    unique = {identity(value): value for value in scalars}
    return [*found, ValueShape(tuple(unique.values()))] if unique else found


def _of_clause(meaning: Meaning, clause: Clause) -> Iterator[Shape]:
    match clause.body:
        case Numbers() as body:
            yield from _numbers(body, sorted({exact(value) for value in clause.barred}))
        case Strings() as body:
            yield from _strings(body, [value for value in clause.barred if body.admits(value)])
        case Arrays() as body:
            yield from array_shapes(meaning, body)
        case Objects() as body:
            yield from object_shapes(meaning, body)


def _of_value(meaning: Meaning, value: Any) -> Shape:
    """An array or object by its parts, so that it may be written with any spaces."""

    def state(item: Any) -> State:
        return ((meaning.source.made({"const": item}, meaning.source.root), True),)

    never: State = (meaning.source.never,)
    if isinstance(value, list):
        return ArrayShape(tuple(state(item) for item in value), never, len(value), len(value))
    properties = {name: state(item) for name, item in value.items()}
    return ObjectShape(properties, tuple(value), (), never, 0, None)


def _numbers(body: Numbers, barred: list[Fraction]) -> Iterator[Shape]:
    """One shape for each stretch between the numbers that are barred."""
    edges = [None, *(value for value in barred if body.admits(value)), None]
    for low, high in pairwise(edges):
        gap = Numbers(low, low is not None, high, high is not None)
        piece = body.meet(gap).tightened()
        if piece.is_empty():
            continue
        if piece.low is not None and piece.low == piece.high:
            yield ValueShape((written(piece.low),))
        elif piece.not_multiples:
            raise unsupported(
                "multipleOf", piece.not_multiples[0][1], "its contrary cannot be enforced"
            )
        else:
            yield NumberShape(replace(piece, not_multiples=()))


def _strings(body: Strings, barred: list[str]) -> Iterator[Shape]:
    pattern = body.pattern
    if barred:
        words = regex.alt(*(regex.text(value) for value in barred))
        pattern = regex.both(pattern, regex.other(words))
    try:
        pattern = plain(pattern)
    except regex.TooManyStates:
        raise unsupported(
            "pattern", body.pointer, "the patterns that must and must not hold are too complex"
        ) from None
    if pattern != regex.NOTHING:
        yield StringShape(body.low, body.high, pattern)
