"""The set of documents that a schema admits, as alternatives for each type of JSON value.

A schema becomes clauses: each a conjunction over one type, its parts named by what they must
satisfy (a ``State``), not written out. So recursion needs no care, and work is proportional to
the states that occur, each of which is looked at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from octavo.errors import UnsupportedConstraint
from octavo.guided.schema import regex
from octavo.guided.schema.clauses import Body, Clause, Handler, anything, ranked, unnoted
from octavo.guided.schema.containers import (
    Arrays,
    Literal,
    NameGroup,
    Objects,
    Some,
    State,
    state_of,
)
from octavo.guided.schema.regex import Regex
from octavo.guided.schema.regex_parse import PatternError, parse_pattern
from octavo.guided.schema.scalars import Numbers, Strings
from octavo.guided.schema.source import Location, SchemaDocument, unsupported
from octavo.guided.schema.unevaluated import closed, unevaluated
from octavo.guided.schema.values import KINDS, Kind, exact, identity, kind_of

MAX_WORK = 60_000
MAX_SECONDS = 4.0
MAX_DEPTH = 120
MAX_GUESS_DEPTH = 12


class _Unknown(UnsupportedConstraint):
    """What is asked depends on what is being worked out."""


class Meaning:
    """Answers what the schemas of one document mean, within a budget."""

    def __init__(self, source: SchemaDocument, handlers: Mapping[str, Handler]) -> None:
        self.source = source
        self._handlers = handlers
        self._clauses: dict[tuple[State, Kind, bool], tuple[Clause, ...]] = {}
        self._of_types: dict[Location, Collection[Kind]] = {}
        self._literals: dict[tuple[Literal, Kind, bool], tuple[Clause, ...]] = {}
        self._open: list[Literal] = []
        self._layer = 0
        self._asked: list[State] = []
        self._vacant: dict[Strings, bool] = {}
        self._empty: dict[State, bool] = {}
        self._impossible: dict[tuple[Literal | None, ...], bool] = {}
        self._patterns: dict[str, Regex] = {}
        self._work = 0
        self._deadline = time.thread_time() + MAX_SECONDS

    def spend(self) -> None:
        """Count a step of work, and refuse the schema when they become too many."""
        self._work += 1
        late = self._work % 500 == 0 and time.thread_time() > self._deadline
        if late or self._work > MAX_WORK:
            raise UnsupportedConstraint(
                "the schema has too many combinations of alternatives; simplify its anyOf, oneOf, "
                "allOf, if and not"
            )

    def pattern(self, pattern: object, keyword: str, at: Location) -> Regex:
        """The strings in which a pattern is found."""
        if not isinstance(pattern, str):
            raise unsupported(keyword, at.pointer, "a pattern must be a string")
        if pattern not in self._patterns:
            try:
                self._patterns[pattern] = parse_pattern(pattern)
            except PatternError as error:
                raise unsupported(keyword, at.pointer, f"{pattern!r} has {error}") from None
        return self._patterns[pattern]

    def clauses(self, state: State, kind: Kind, track: bool = False) -> tuple[Clause, ...]:
        """The alternatives of a type.

        ``track``: split so that in each alternative exactly the groups that it holds were looked
        at, as ``unevaluatedProperties`` needs it.
        """
        if any(holds and kind not in self._kinds(place) for place, holds in state):
            return ()
        if len(state) == 1:
            return self.literal_clauses(state[0], kind, track)
        # Each beginning is kept: the states of a chain of conditions differ by their ends.
        found: tuple[Clause, ...] = (anything(kind),)
        for length in range(1, len(state) + 1):
            key = (state[:length], kind, track)
            if key not in self._clauses:
                last = self.literal_clauses(state[length - 1], kind, track)
                self._clauses[key] = self.product(kind, [found, last])
            found = self._clauses[key]
        return found

    def kinds(self, state: State) -> Collection[Kind]:
        """The types of which there may be alternatives."""
        found: Collection[Kind] = KINDS
        for place, holds in state:
            if holds:
                left = self._kinds(place)
                found = left if found is KINDS else [kind for kind in found if kind in left]
        return found

    def overlap(self, first: Literal, second: Literal, kind: Kind) -> bool:
        """Whether both may hold at once, as far as can be seen."""
        return any(
            self.meet(one, other) is not None
            for one in self.literal_clauses(first, kind, False)
            for other in self.literal_clauses(second, kind, False)
        )

    def _kinds(self, place: Location) -> Collection[Kind]:
        """The types that the schema's ``type`` leaves: of others nothing else needs to be read."""
        if place not in self._of_types:
            self._of_types[place] = _kinds_left(place)
        return self._of_types[place]

    def literal_clauses(self, literal: Literal, kind: Kind, track: bool) -> tuple[Clause, ...]:
        """The alternatives of a type that one subschema leaves, or its contrary."""
        place, holds = literal
        if isinstance(place.schema, bool):
            return (anything(kind),) if place.schema is holds else ()
        if holds and kind not in self._kinds(place):
            return ()
        key = (literal, kind, track)
        if key in self._literals:
            return self._literals[key]
        if literal in self._open[self._layer :] or len(self._open) > MAX_DEPTH:
            raise unsupported("$ref", place.pointer, "leads back to itself before any value")
        if literal in self._open:
            raise _Unknown(str(unsupported("$ref", place.pointer, "leads back to its own enum")))
        self._open.append(literal)
        try:
            found = self._expand(place, kind, holds, track)
        finally:
            self._open.pop()
        self._literals[key] = found
        return found

    def _expand(self, place: Location, kind: Kind, holds: bool, track: bool) -> tuple[Clause, ...]:
        handlers = dict.fromkeys(
            handler
            for keyword in _effective(place)
            if (handler := self._handlers.get(keyword)) is not None
        )
        rest = unevaluated(place, kind)
        parts = [
            handler(self, place, kind, holds, track or rest is not None) for handler in handlers
        ]
        if not holds:
            if rest is not None:
                raise unsupported(rest, place.pointer, "its contrary cannot be enforced")
            return self.product(kind, [[unnoted(clause) for part in parts for clause in part]])
        found = self.product(kind, parts)
        if rest is None:
            return found
        literal = (self.source.child(place, rest), True)
        found = tuple(closed(self.source, clause, literal, place) for clause in found)
        return tuple(clause for clause in found if not self.is_vacant(clause.body))

    def product(self, kind: Kind, parts: Iterable[Sequence[Clause]]) -> tuple[Clause, ...]:
        """All combinations that something satisfies, the parts with fewest choices first."""
        whole = anything(kind)
        said = [
            (index, part)
            for index, part in enumerate(parts)
            if not (len(part) == 1 and part[0] is whole)
        ]
        said.sort(key=lambda item: len(item[1]))
        if said and not said[0][1]:
            return ()
        if not said:
            return (whole,)
        found: list[Clause] | None = None
        for index, choices in said:
            placed = [ranked(choice, index) for choice in choices]
            pairs = (
                map(self._checked, placed)
                if found is None
                else (self.meet(clause, choice) for clause in found for choice in placed)
            )
            found = [met for met in pairs if met is not None]
        return tuple(found or ())

    def meet(self, first: Clause, second: Clause) -> Clause | None:
        """Both at once; None where nothing satisfies both, as far as can be seen."""
        values = first.values
        if values is None or second.values is None:
            values = second.values if values is None else values
        else:
            among = {identity(value) for value in second.values}
            values = tuple(value for value in values if identity(value) in among)
        body: Body = first.body or second.body
        if first.body is not None and second.body is not None:
            body = first.body.meet(second.body)  # type: ignore[arg-type]
        return self._checked(Clause(body, values, first.barred + second.barred))

    def _checked(self, clause: Clause) -> Clause | None:
        """The clause with those of its values that it admits; None where nothing satisfies it."""
        self.spend()
        if clause.values is None:
            return None if self.is_vacant(clause.body) else clause
        bare = Clause(clause.body, None, clause.barred)
        values = tuple(value for value in clause.values if self._clause_admits(bare, value))
        return Clause(clause.body, values, clause.barred) if values else None

    def is_vacant(self, body: Body) -> bool:
        """Whether nothing satisfies all parts, as far as can be seen with little work."""
        match body:
            case Numbers():
                return body.is_empty()
            case Strings():
                if body not in self._vacant:
                    self._vacant[body] = body.is_empty()
                return self._vacant[body]
            case Arrays():
                if body.high is not None and body.low > body.high:
                    return True
                count = min(body.low, body.num_prefix + 1)
                return any(self.is_empty(body.item(index)) for index in range(count))
            case Objects():
                if body.high is not None and max(body.low, len(body.required)) > body.high:
                    return True
                return any(map(self._is_impossible(body), body.required))
        return False

    def _is_impossible(self, body: Objects) -> Callable[[str], bool]:
        """Whether nothing may be the property of a name; most bodies ask for what others do."""
        if body.named or any(group.patterns for group in body.groups):
            return lambda name: self.is_empty(self.property(body, name))

        def is_impossible(name: str) -> bool:
            asked = tuple([group.names.get(name, group.rest) for group in body.groups])
            known = self._impossible.get(asked)
            if known is None:
                state = self.property(body, name)
                known = self.is_empty(state)
                if not state or state in self._empty:
                    self._impossible[asked] = known
            return known

        return is_impossible

    def is_empty(self, state: State) -> bool:
        """Whether nothing satisfies the state; False where that is not known yet."""
        if not state:
            return False
        if state not in self._empty:
            if state in self._asked or len(self._asked) > MAX_GUESS_DEPTH:
                return False
            self._asked.append(state)
            try:
                with self._one_layer_deeper():
                    self._empty[state] = not any(
                        self.clauses(state, kind) for kind in self.kinds(state)
                    )
            except _Unknown:
                return False
            finally:
                self._asked.pop()
        return self._empty[state]

    @contextmanager
    def _one_layer_deeper(self) -> Iterator[None]:
        """Look at a part of the value: what is being looked at outside may occur in it again."""
        outer, self._layer = self._layer, len(self._open)
        try:
            yield
        finally:
            self._layer = outer

    def property(self, body: Objects, name: str) -> State:
        """What the property of this name must satisfy."""
        literals: list[Literal | None] = []
        groups: Iterable[NameGroup] = body.groups
        if len(body.groups) > 1:
            groups = sorted(body.groups, key=lambda group: group.rank)
        for group in groups:
            if group.patterns:
                literals += group_literals(group, name)
            else:
                literals.append(group.names.get(name, group.rest))
        if body.named and any(not self.admits((literal,), name) for literal in body.named):
            literals.append(self.source.never)
        return state_of(literals)

    def admits(self, state: State, value: Any) -> bool:
        """Whether a value satisfies the state."""
        if not state:
            return True
        self.spend()
        with self._one_layer_deeper():
            clauses = self.clauses(state, kind_of(value))
        return any(self._clause_admits(clause, value) for clause in clauses)

    def _clause_admits(self, clause: Clause, value: Any) -> bool:
        if clause.values is not None:
            key = identity(value)
            if all(identity(item) != key for item in clause.values):
                return False
        if clause.barred and identity(value) in _identities(clause.barred):
            return False
        match clause.body:
            case Numbers() as body:
                return body.admits(exact(value))
            case Strings() as body:
                return body.admits(value)
            case Arrays() as body:
                return self._array_admits(body, value)
            case Objects() as body:
                return self._object_admits(body, value)
        return True

    def _array_admits(self, body: Arrays, value: list[Any]) -> bool:
        if len(value) < body.low or (body.high is not None and len(value) > body.high):
            return False
        distinct = len({identity(item) for item in value}) == len(value)
        if (body.unique is not None and not distinct) or (body.not_unique is not None and distinct):
            return False
        for count in body.counts:
            hits = sum(self.admits(state_of([count.item]), item) for item in value[count.start :])
            if hits < count.low or (count.high is not None and hits > count.high):
                return False
        return all(self.admits(body.item(index), item) for index, item in enumerate(value))

    def _object_admits(self, body: Objects, value: dict[str, Any]) -> bool:
        if len(value) < body.low or (body.high is not None and len(value) > body.high):
            return False
        if any(name not in value for name in body.required):
            return False
        for some in body.some:
            if not any(
                self.names_admit(some, name) and self.admits(state_of([some.value]), item)
                for name, item in value.items()
            ):
                return False
        return all(self.admits(self.property(body, name), item) for name, item in value.items())

    def names_admit(self, some: Some, name: str) -> bool:
        """Whether a property of this name could be the one that is asked for."""
        return regex.matches(some.names, name) and self.admits(state_of([some.name]), name)


@lru_cache(maxsize=64)
def _identities(scalars: tuple[float | str, ...]) -> frozenset[Hashable]:
    return frozenset(map(identity, scalars))


def group_literals(group: NameGroup, name: str) -> list[Literal | None]:
    """What one group asks of the property of a name."""
    found: list[Literal | None] = [group.names[name]] if name in group.names else []
    found += [literal for names, literal in group.patterns if regex.matches(names, name)]
    return found or [group.rest]


def _kinds_left(place: Location) -> Collection[Kind]:
    schema = place.schema
    if isinstance(schema, bool) or "type" not in schema:
        return KINDS
    if place.draft <= 7 and "$ref" in schema:
        return KINDS
    names = schema["type"]
    names = names if isinstance(names, list) else [names]
    found = [kind for kind in KINDS if kind in names]
    if "integer" in names and "number" not in names:
        found.append("number")
    is_known = bool(names) and all(name in (*KINDS, "integer") for name in names)
    return found if is_known else KINDS  # which its handler will refuse


def _effective(place: Location) -> Iterable[str]:
    """The keywords that count: until draft 7, what stands beside ``$ref`` does not."""
    assert isinstance(place.schema, dict)
    return ("$ref",) if place.draft <= 7 and "$ref" in place.schema else place.schema
