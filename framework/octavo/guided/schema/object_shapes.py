"""Alternatives for objects: named properties, properties by disjoint patterns, and all others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from math import comb

from octavo.errors import UnsupportedConstraint
from octavo.guided.schema import regex
from octavo.guided.schema.containers import Literal, NameGroup, Objects, Some, State, state_of
from octavo.guided.schema.meaning import Meaning
from octavo.guided.schema.regex import Regex
from octavo.guided.schema.regex_plain import plain
from octavo.guided.schema.scalars import Strings
from octavo.guided.schema.shape_types import ObjectShape
from octavo.guided.schema.source import unsupported

MAX_ALTERNATIVES = 256
MAX_PATTERNS = 24


def object_shapes(meaning: Meaning, body: Objects) -> Iterator[ObjectShape]:
    """The shapes of one alternative."""
    body = _with_listed_names(meaning, body)
    properties = {name: meaning.property(body, name) for name in body.names()}
    patterns, rest = _others(meaning, body)
    is_closed = not patterns and meaning.is_empty(rest)
    if body.some:
        yield from _with_some(meaning, body, body.some[0], is_closed)
        return
    never: State = (meaning.source.never,)
    properties = {
        name: never if meaning.is_empty(state) else state for name, state in properties.items()
    }
    shape = ObjectShape(
        properties, body.required, patterns, never if is_closed else rest, body.low, body.high
    )
    yield from _sized(shape, is_closed, never)


def _with_some(
    meaning: Meaning, body: Objects, some: Some, is_closed: bool
) -> Iterator[ObjectShape]:
    """One alternative for each name that may be the one that is asked for."""
    if not is_closed:
        raise unsupported(*some.blame, "its contrary cannot be enforced where any name may stand")
    rest = replace(body, some=body.some[1:])
    for name in body.names():
        if meaning.names_admit(some, name):
            names = {name: some.value} if some.value is not None else {}
            group = NameGroup(names, noted=False, rank=(len(body.groups),))
            chosen = replace(
                rest,
                groups=(*rest.groups, group),
                required=tuple(dict.fromkeys((*rest.required, name))),
            )
            if not meaning.is_vacant(chosen):
                yield from object_shapes(meaning, chosen)


def _with_listed_names(meaning: Meaning, body: Objects) -> Objects:
    """Where only certain names may stand, mention them all."""
    for literal in body.named:
        values: list[str] = []
        for clause in meaning.clauses((literal,), "string"):
            if clause.values is None:
                break
            values += clause.values
        else:
            known = set(body.names())
            anything = meaning.source.always
            listed = {name: anything for name in values if name not in known}
            group = NameGroup(listed, noted=False, rank=(len(body.groups),))
            body = replace(body, groups=(*body.groups, group))
    return body


def _others(meaning: Meaning, body: Objects) -> tuple[tuple[tuple[Regex, State], ...], State]:
    """What properties must satisfy that are not named: by disjoint patterns, and elsewhere."""
    found: list[tuple[Regex, State]] = []
    rest = state_of([group.rest for group in body.groups])
    distinct = list(dict.fromkeys(names for group in body.groups for names, _ in group.patterns))
    if len(distinct) > MAX_PATTERNS:
        raise _too_complex(body)
    regions: list[tuple[frozenset[Regex], Regex]] = []
    for pattern in distinct:
        try:
            regions = list(_overlaid(regions, pattern))
        except regex.TooManyStates:
            raise _too_complex(body) from None
    allowed = _allowed_names(meaning, body)
    for inside, names in regions:
        literals: list[Literal | None] = []
        for group in body.groups:
            mine = [literal for pattern, literal in group.patterns if pattern in inside]
            literals += mine or [group.rest]
        _add(found, regex.both(names, allowed), state_of(literals))
    if allowed != regex.ANY_TEXT:
        outside = regex.other(regex.alt(*distinct))
        _add(found, regex.both(outside, allowed), rest)
        rest = (meaning.source.never,)
    try:
        if len(found) == 1 and regex.is_empty(regex.other(found[0][0])):
            return (), found[0][1]  # ".*" and its like: there are no names but these
        return tuple(_written(meaning, found, rest)), rest
    except regex.TooManyStates:
        raise _too_complex(body) from None


def _too_complex(body: Objects) -> UnsupportedConstraint:
    places = [place for group in body.groups for _, (place, _) in group.patterns]
    places += [place for place, _ in body.named]
    pointer = places[0].pointer if places else ""
    return unsupported("patternProperties", pointer, "the patterns are too complex together")


def _overlaid(
    regions: list[tuple[frozenset[Regex], Regex]], pattern: Regex
) -> Iterator[tuple[frozenset[Regex], Regex]]:
    """Disjoint sets of names, each with the patterns found in its names; one pattern more."""
    alone = pattern
    for inside, names in regions:
        shared = regex.both(names, pattern)
        if regex.is_empty(shared):
            yield inside, names
            continue
        alone = regex.both(alone, regex.other(names))
        yield inside | {pattern}, shared
        outside = regex.both(names, regex.other(pattern))
        if not regex.is_empty(outside):
            yield inside, outside
    if not regex.is_empty(alone):
        yield frozenset([pattern]), alone


def _add(found: list[tuple[Regex, State]], names: Regex, state: State) -> None:
    """One more set of names, joined with another one whose properties must satisfy the same."""
    for index, (others, known) in enumerate(found):
        if known == state:
            found[index] = (regex.alt(others, names), state)
            return
    found.append((names, state))


def _written(
    meaning: Meaning, found: list[tuple[Regex, State]], rest: State
) -> Iterator[tuple[Regex, State]]:
    rest_is_empty = meaning.is_empty(rest)
    for names, state in found:
        state = (meaning.source.never,) if meaning.is_empty(state) else state
        if rest_is_empty and meaning.is_empty(state):
            continue
        pattern = plain(names)
        if pattern != regex.NOTHING:
            yield pattern, state


def _allowed_names(meaning: Meaning, body: Objects) -> Regex:
    """The names that ``propertyNames`` leaves."""
    allowed: Regex = regex.ANY_TEXT
    for literal in body.named:
        choices = []
        for clause in meaning.clauses((literal,), "string"):
            if clause.values is not None:
                continue  # these are mentioned by name
            assert isinstance(clause.body, Strings)
            names: Regex = clause.body.pattern
            if clause.body.low or clause.body.high is not None:
                length = regex.repeat(regex.ANY_CHAR, clause.body.low, clause.body.high)
                names = length if names == regex.ANY_TEXT else regex.both(names, length)
            if clause.barred:
                words = regex.alt(*(regex.text(value) for value in clause.barred))
                names = regex.both(names, regex.other(words))
            choices.append(names)
        allowed = regex.both(allowed, regex.alt(*choices))
    return allowed


def _sized(shape: ObjectShape, is_closed: bool, never: State) -> Iterator[ObjectShape]:
    """The shape, with its least and greatest number of properties said by which they are."""
    optional = [
        name
        for name, state in shape.properties.items()
        if name not in shape.required and state != never
    ]
    num_required = len(shape.required)
    low = max(shape.low - num_required, 0)
    high = None if shape.high is None else shape.high - num_required
    if is_closed:
        high = None if high is None or high >= len(optional) else high
        if low > len(optional):
            return
    if high == 0 and not low:
        yield _choose(shape, optional, (), (), never, closed=True)
    elif not low and high is None:
        yield replace(shape, low=0, high=None)
    elif is_closed and high is None and comb(len(optional), low) <= MAX_ALTERNATIVES:
        for chosen in combinations(optional, low):
            yield _choose(shape, optional, chosen, optional, never)
    elif is_closed and not low and comb(len(optional), high or 0) <= MAX_ALTERNATIVES:
        for chosen in combinations(optional, high or 0):
            yield _choose(shape, optional, (), chosen, never)
    elif not optional:
        yield replace(shape, low=shape.low if low else 0)
    elif low == 1 and high is None:
        for name in optional:
            yield _choose(shape, optional, (name,), optional, never)
        yield replace(_choose(shape, optional, (), (), never), low=shape.low)
    elif 2 ** len(optional) <= MAX_ALTERNATIVES:
        yield from _subsets(shape, optional, is_closed, never)
    else:
        keyword = "minProperties" if low else "maxProperties"
        raise unsupported(
            keyword, "", f"cannot be enforced with {len(optional)} optional properties"
        )


def _subsets(
    shape: ObjectShape, optional: list[str], is_closed: bool, never: State
) -> Iterator[ObjectShape]:
    """One shape for each set of optional properties that may be there."""
    for size in range(len(optional) + 1):
        present = size + len(shape.required)
        if shape.high is not None and present > shape.high:
            continue
        if is_closed and present < shape.low:
            continue
        for chosen in combinations(optional, size):
            piece = _choose(shape, optional, chosen, chosen, never)
            if not is_closed:
                piece = replace(piece, low=shape.low if shape.low > present else 0, high=shape.high)
            yield piece


def _choose(
    shape: ObjectShape,
    optional: list[str],
    required: tuple[str, ...],
    allowed: tuple[str, ...] | list[str],
    never: State,
    closed: bool = False,
) -> ObjectShape:
    """The shape with some optional properties required, some allowed and the others absent."""
    absent = set(optional) - set(allowed)
    return ObjectShape(
        {name: never if name in absent else state for name, state in shape.properties.items()},
        (*shape.required, *required),
        () if closed else shape.patterns,
        never if closed else shape.rest,
        0,
        None,
    )
