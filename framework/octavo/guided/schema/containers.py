"""What a schema says of an array or an object: groups of keywords that belong together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from octavo.guided.schema.regex import Regex
from octavo.guided.schema.scalars import least
from octavo.guided.schema.source import Location

Literal = tuple[Location, bool]
"""A subschema that must hold, or must not."""
State = tuple[Literal, ...]
"""All that a value must satisfy; empty: anything."""


@dataclass(frozen=True, slots=True)
class ItemGroup:
    """``prefixItems`` and ``items`` of one schema; None: anything."""

    prefix: tuple[Literal | None, ...] = ()
    rest: Literal | None = None
    noted: bool = True
    """Whether ``unevaluatedItems`` counts these items as looked at."""


@dataclass(frozen=True, slots=True)
class Count:
    """How many items from ``start`` on satisfy something."""

    item: Literal
    low: int
    high: int | None
    start: int = 0
    blame: tuple[str, str] = ("contains", "")
    noted: bool = True
    """Whether ``unevaluatedItems`` counts such items as looked at."""


@dataclass(frozen=True, slots=True)
class Arrays:
    """Every array that all groups and counts admit."""

    groups: tuple[ItemGroup, ...] = ()
    low: int = 0
    high: int | None = None
    unique: str | None = None
    """The place of the keyword to blame; None: items may be equal."""
    not_unique: str | None = None
    counts: tuple[Count, ...] = ()

    def meet(self, other: Arrays) -> Arrays:
        """Both at once."""
        return Arrays(
            self.groups + other.groups,
            max(self.low, other.low),
            least(self.high, other.high),
            other.unique if self.unique is None else self.unique,
            other.not_unique if self.not_unique is None else self.not_unique,
            self.counts + other.counts,
        )

    @property
    def num_prefix(self) -> int:
        """From which index on all items are alike."""
        return max((len(group.prefix) for group in self.groups), default=0)

    def item(self, index: int) -> State:
        """What the item at an index must satisfy."""
        literals: list[Literal | None] = [
            group.prefix[index] if index < len(group.prefix) else group.rest
            for group in self.groups
        ]
        return state_of(literals)


@dataclass(frozen=True, slots=True)
class NameGroup:
    """``properties``, ``patternProperties`` and ``additionalProperties`` of one schema."""

    names: Mapping[str, Literal] = field(default_factory=dict)
    patterns: tuple[tuple[Regex, Literal], ...] = ()
    rest: Literal | None = None
    noted: bool = True
    """Whether ``unevaluatedProperties`` counts these properties as looked at."""
    rank: tuple[int, ...] = ()
    """Where it stands in the user's text: properties are written in that order."""


@dataclass(frozen=True, slots=True)
class Some:
    """At least one property whose name is in a set, with a value that satisfies something."""

    names: Regex
    value: Literal | None
    blame: tuple[str, str]
    name: Literal | None = None
    """What the name must satisfy besides."""


@dataclass(frozen=True, slots=True)
class Objects:
    """Every object that all groups admit."""

    groups: tuple[NameGroup, ...] = ()
    required: tuple[str, ...] = ()
    low: int = 0
    high: int | None = None
    named: tuple[Literal, ...] = ()
    """What every name must satisfy."""
    some: tuple[Some, ...] = ()

    def meet(self, other: Objects) -> Objects:
        """Both at once."""
        return Objects(
            self.groups + other.groups,
            tuple(dict.fromkeys(self.required + other.required)),
            max(self.low, other.low),
            least(self.high, other.high),
            self.named + other.named,
            self.some + other.some,
        )

    def ranked(self, index: int) -> Objects:
        """As the part with this index of a larger schema."""
        if not self.groups:
            return self
        groups = tuple(
            NameGroup(group.names, group.patterns, group.rest, group.noted, (index, *group.rank))
            for group in self.groups
        )
        return Objects(groups, self.required, self.low, self.high, self.named, self.some)

    def names(self) -> list[str]:
        """All names that are mentioned, in the user's order, those that are only excluded last."""
        found: dict[str, None] = {}
        for group in sorted(self.groups, key=lambda group: (not group.noted, group.rank)):
            found.update(dict.fromkeys(group.names))
        found.update(dict.fromkeys(self.required))
        return list(found)


def state_of(literals: list[Literal | None]) -> State:
    """All of them, each once, without those that say nothing."""
    found = [item for item in literals if item is not None and not says_nothing(item)]
    return tuple(found) if len(found) < 2 else tuple(dict.fromkeys(found))


def says_nothing(literal: Literal) -> bool:
    """Whether every value satisfies it."""
    place, holds = literal
    if holds:
        return place.schema is True or place.schema == {}
    return place.schema is False
