"""``unevaluatedProperties`` and ``unevaluatedItems``: what no neighbouring schema has looked at."""

from __future__ import annotations

from dataclasses import replace

from octavo.guided.schema.clauses import Clause
from octavo.guided.schema.containers import Arrays, ItemGroup, Literal, NameGroup, Objects
from octavo.guided.schema.source import Location, SchemaDocument, unsupported
from octavo.guided.schema.values import Kind


def unevaluated(place: Location, kind: Kind) -> str | None:
    """The keyword of the two that the schema has for this type."""
    keyword = {"object": "unevaluatedProperties", "array": "unevaluatedItems"}.get(kind, "")
    assert not isinstance(place.schema, bool)
    return keyword if keyword in place.schema else None


def closed(source: SchemaDocument, clause: Clause, rest: Literal, place: Location) -> Clause:
    """The alternative, with the rest required of all that its groups have not looked at."""
    body = clause.body
    if isinstance(body, Objects):
        return replace(clause, body=_closed_object(body, rest, place))
    if isinstance(body, Arrays):
        return replace(clause, body=_closed_array(source, body, rest, place))
    return clause


def _closed_object(body: Objects, rest: Literal, place: Location) -> Objects:
    noted = [group for group in body.groups if group.noted]
    if any(group.rest is not None for group in noted):
        return body
    anything: Literal = (Location(True, "", "", 2020), True)
    names = {name: anything for group in noted for name in group.names}
    patterns = tuple((found, anything) for group in noted for found, _ in group.patterns)
    group = NameGroup(names, patterns, rest, rank=(len(body.groups),))
    return replace(body, groups=(*body.groups, group))


def _closed_array(source: SchemaDocument, body: Arrays, rest: Literal, place: Location) -> Arrays:
    noted = [group for group in body.groups if group.noted]
    if any(group.rest is not None for group in noted):
        return body
    counted = [count.item[0] for count in body.counts if count.noted and place.draft > 2019]
    if counted:  # what contains asks for is looked at wherever it stands
        options = [*counted, rest[0]]
        if any((each.base, each.scope) != (place.base, place.scope) for each in options):
            raise unsupported("unevaluatedItems", place.pointer, "beside another's contains")
        rest = (source.made({"anyOf": [each.schema for each in options]}, place), True)
    num_seen = max((len(group.prefix) for group in noted), default=0)
    group = ItemGroup((None,) * num_seen, rest)
    return replace(body, groups=(*body.groups, group))
