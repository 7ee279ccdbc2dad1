"""One alternative of what a schema leaves of one type of JSON value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from octavo.guided.schema.containers import Arrays, Objects
from octavo.guided.schema.scalars import Numbers, Strings
from octavo.guided.schema.source import Location
from octavo.guided.schema.values import Kind

if TYPE_CHECKING:
    from octavo.guided.schema.meaning import Meaning

Body = Numbers | Strings | Arrays | Objects | None


@dataclass(frozen=True, slots=True)
class Clause:
    """One alternative of one type."""

    body: Body = None
    values: tuple[Any, ...] | None = None
    """If not None, nothing but these, all of which the body admits."""
    barred: tuple[Any, ...] = ()
    """Numbers or strings, none of which it may be."""


_ANYTHING: dict[Kind, Clause] = {
    "null": Clause(values=(None,)),
    "boolean": Clause(values=(False, True)),
    "number": Clause(Numbers()),
    "string": Clause(Strings()),
    "array": Clause(Arrays()),
    "object": Clause(Objects()),
}


def anything(kind: Kind) -> Clause:
    """Every value of a type."""
    return _ANYTHING[kind]


def ranked(clause: Clause, index: int) -> Clause:
    """As the part with this index of a larger schema."""
    if isinstance(clause.body, Objects) and clause.body.groups:
        return Clause(clause.body.ranked(index), clause.values, clause.barred)
    return clause


def unnoted(clause: Clause) -> Clause:
    """Without what unevaluated* would count: a schema that must not hold looks at nothing."""
    body = clause.body
    if isinstance(body, Objects):
        groups = tuple(replace(group, noted=False) for group in body.groups)
        return replace(clause, body=replace(body, groups=groups))
    if isinstance(body, Arrays):
        items = tuple(replace(group, noted=False) for group in body.groups)
        counts = tuple(replace(count, noted=False) for count in body.counts)
        return replace(clause, body=replace(body, groups=items, counts=counts))
    return clause


Alternatives = list[Clause]
Handler = Callable[["Meaning", Location, Kind, bool, bool], Alternatives]
"""``handle(meaning, place, kind, holds, track)``; ``track`` as in ``Meaning.clauses``."""


def only(
    kind: Kind, of: Kind, holds: bool, yes: Body | None, no: list[Body] | None
) -> Alternatives:
    """The alternatives of a keyword that speaks about one type; None: everything, nothing."""
    if kind != of:
        return [anything(kind)] if holds else []
    if holds:
        return [Clause(yes) if yes is not None else anything(kind)]
    return [Clause(body) for body in no or []]
