"""Keywords that combine schemas, as alternatives: each handler is as ``keywords`` describes it."""

from __future__ import annotations

from itertools import combinations
from typing import Any

from octavo.guided.schema.clauses import Alternatives, Clause, Handler, anything, only
from octavo.guided.schema.containers import Literal, NameGroup, Objects, State
from octavo.guided.schema.meaning import Meaning
from octavo.guided.schema.source import Location, unsupported
from octavo.guided.schema.values import Kind

MAX_TRACKED_BRANCHES = 6


def _ref(keyword: str) -> Handler:
    def handle(
        meaning: Meaning, place: Location, kind: Kind, holds: bool, track: bool
    ) -> Alternatives:
        assert not isinstance(place.schema, bool)
        target = meaning.source.resolve(place.schema[keyword], keyword, place)
        return list(meaning.literal_clauses((target, holds), kind, track))

    return handle


def _branches(meaning: Meaning, place: Location, keyword: str) -> list[Location]:
    assert not isinstance(place.schema, bool)
    value = place.schema[keyword]
    if not isinstance(value, list) or not value:
        raise unsupported(keyword, place.pointer, "must be a list of at least one schema")
    return [meaning.source.child(place, keyword, index) for index in range(len(value))]


def _all_of(
    meaning: Meaning, place: Location, kind: Kind, holds: bool, track: bool
) -> Alternatives:
    branches = _branches(meaning, place, "allOf")
    if not holds:
        return _union(meaning, [(branch, False) for branch in branches], kind, False)
    parts = [meaning.literal_clauses((branch, True), kind, track) for branch in branches]
    return list(meaning.product(kind, parts))


def _any_of(
    meaning: Meaning, place: Location, kind: Kind, holds: bool, track: bool
) -> Alternatives:
    branches = _branches(meaning, place, "anyOf")
    if not holds:
        return list(meaning.clauses(tuple((branch, False) for branch in branches), kind))
    literals: list[Literal] = [(branch, True) for branch in branches]
    if not track:
        return _union(meaning, literals, kind, False)
    # Whichever set of branches holds, one alternative has looked at exactly what they look at.
    live = [item for item in literals if meaning.literal_clauses(item, kind, True)]
    if len(live) > MAX_TRACKED_BRANCHES:
        raise unsupported(
            "anyOf", place.pointer, "too many branches beside unevaluatedProperties or -Items"
        )
    return [
        clause
        for size in range(1, len(live) + 1)
        for chosen in combinations(live, size)
        for clause in meaning.clauses(chosen, kind, True)
    ]


def _union(meaning: Meaning, literals: list[Literal], kind: Kind, track: bool) -> Alternatives:
    return [clause for item in literals for clause in meaning.literal_clauses(item, kind, track)]


def _one_of(
    meaning: Meaning, place: Location, kind: Kind, holds: bool, track: bool
) -> Alternatives:
    """Each branch without the others; where two cannot both hold, nothing needs to be said."""
    branches = _branches(meaning, place, "oneOf")
    live = [item for item in branches if meaning.literal_clauses((item, True), kind, False)]
    overlaps = {
        frozenset(pair)
        for pair in combinations(live, 2)
        if meaning.overlap((pair[0], True), (pair[1], True), kind)
    }
    if not holds:
        none = meaning.clauses(tuple((item, False) for item in branches), kind)
        pairs = [tuple((item, True) for item in live if item in pair) for pair in overlaps]
        return [*none, *(clause for pair in pairs for clause in meaning.clauses(pair, kind))]
    found: Alternatives = []
    for branch in live:
        others: State = tuple(
            (item, False) for item in live if frozenset((branch, item)) in overlaps
        )
        alone = meaning.clauses(others, kind)
        mine = meaning.literal_clauses((branch, True), kind, track)
        found += meaning.product(kind, [mine, alone])
    return found


def _not(meaning: Meaning, place: Location, kind: Kind, holds: bool, track: bool) -> Alternatives:
    return list(
        meaning.literal_clauses((meaning.source.child(place, "not"), not holds), kind, False)
    )


def _if(meaning: Meaning, place: Location, kind: Kind, holds: bool, track: bool) -> Alternatives:
    schema: Any = place.schema
    if "if" not in schema:
        return [anything(kind)] if holds else []
    condition = meaning.source.child(place, "if")
    found: Alternatives = []
    for keyword, met in (("then", True), ("else", False)):
        state: State = ((condition, met),)
        if keyword in schema:
            state += ((meaning.source.child(place, keyword), holds),)
        elif not holds:
            continue
        found += meaning.clauses(state, kind, track)
    return found


def _dependent_required(
    meaning: Meaning, place: Location, kind: Kind, holds: bool, track: bool
) -> Alternatives:
    return _dependent(meaning, place, kind, holds, track, "dependentRequired")


def _dependent_schemas(
    meaning: Meaning, place: Location, kind: Kind, holds: bool, track: bool
) -> Alternatives:
    return _dependent(meaning, place, kind, holds, track, "dependentSchemas")


def _dependencies(
    meaning: Meaning, place: Location, kind: Kind, holds: bool, track: bool
) -> Alternatives:
    return _dependent(meaning, place, kind, holds, track, "dependencies")


def _dependent(
    meaning: Meaning, place: Location, kind: Kind, holds: bool, track: bool, keyword: str
) -> Alternatives:
    if kind != "object":
        return only(kind, "object", holds, None, None)
    schema: Any = place.schema
    table = schema[keyword]
    if not isinstance(table, dict):
        raise unsupported(keyword, place.pointer, "must map names to what they ask for")
    parts: list[Alternatives] = []
    for name, needed in table.items():
        present = [Clause(Objects(required=(name,)))]
        if isinstance(needed, list):
            then = meaning.literal_clauses(
                (meaning.source.made({"required": needed}, place), holds), kind, False
            )
        else:
            child = meaning.source.child(place, keyword, name)
            then = meaning.literal_clauses((child, holds), kind, track)
        met = list(meaning.product(kind, [present, then]))
        absent = Clause(Objects((NameGroup({name: meaning.source.never}, noted=False),)))
        parts.append([absent, *met] if holds else met)
    if holds:
        return list(meaning.product(kind, parts))
    return [clause for part in parts for clause in part]


APPLICATORS: dict[str, Handler] = {
    "$ref": _ref("$ref"),
    "$dynamicRef": _ref("$dynamicRef"),
    "$recursiveRef": _ref("$recursiveRef"),
    "allOf": _all_of,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "not": _not,
    **dict.fromkeys(("if", "then", "else"), _if),
    "dependentRequired": _dependent_required,
    "dependentSchemas": _dependent_schemas,
    "dependencies": _dependencies,
}
