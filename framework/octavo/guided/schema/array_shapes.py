"""Alternatives for arrays: a fixed beginning, and the same for all further items."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, permutations
from math import perm
from typing import Any

from octavo.guided.schema.containers import Arrays, Count, ItemGroup, State, state_of
from octavo.guided.schema.meaning import Meaning
from octavo.guided.schema.shape_types import ArrayShape
from octavo.guided.schema.source import unsupported
from octavo.guided.schema.values import identity

MAX_ARRANGEMENTS = 256
MAX_ROOM = 12
"""Items in all of which those are looked for that are counted."""
REACH = 8
"""The first items, where there may be more."""


def array_shapes(meaning: Meaning, body: Arrays) -> Iterator[ArrayShape]:
    """The shapes of one alternative."""
    for simple in _without_counts(meaning, _shortened(meaning, body)):
        simple = _shortened(meaning, simple)
        if meaning.is_vacant(simple):
            continue
        if simple.unique is not None and (simple.high is None or simple.high > 1):
            yield from _distinct(meaning, simple)
        elif simple.not_unique is not None:
            raise unsupported("uniqueItems", simple.not_unique, "its contrary cannot be enforced")
        else:
            yield _shape(meaning, simple)


def _shape(meaning: Meaning, body: Arrays) -> ArrayShape:
    length = body.num_prefix if body.high is None else min(body.num_prefix, body.high)
    prefix = tuple(body.item(index) for index in range(length))
    rest = body.item(length)
    if body.high is not None and body.high <= length:
        rest = (meaning.source.never,)
    return ArrayShape(prefix, rest, body.low, body.high)


def _shortened(meaning: Meaning, body: Arrays) -> Arrays:
    """At most as long as there is something to put in."""
    for index in range(body.num_prefix + 1):
        if body.high is not None and index >= body.high:
            break
        if meaning.is_empty(body.item(index)):
            return replace(body, high=index)
    return body


def _without_counts(meaning: Meaning, body: Arrays) -> Iterator[Arrays]:
    """Say where the items stand that are counted, one alternative for each way."""
    if not body.counts:
        yield body
        return
    count, rest = body.counts[0], replace(body, counts=body.counts[1:])
    for placed in _placed(meaning, rest, count):
        yield from _without_counts(meaning, placed)


def _placed(meaning: Meaning, body: Arrays, count: Count) -> Iterator[Arrays]:
    place, holds = count.item
    contrary = (place, not holds)
    skipped = (None,) * count.start
    if count.high == 0:
        yield _with(body, ItemGroup(skipped, contrary, noted=False))
        return
    checked = range(count.start, max(body.num_prefix, count.start) + 1)
    if all(_implies(meaning, body.item(index), contrary) for index in checked):
        high = None if count.high is None else count.high + count.start
        low = count.low + count.start if count.low else 0
        limited = replace(body, low=max(body.low, low))
        yield limited if high is None else _with_limit(limited, high)
        return
    if count.low == 0 and count.high is None:
        yield body
        return
    if body.high is None or body.high - count.start > MAX_ROOM:
        yield from _among_first(meaning, body, count)
    else:
        yield from _positions(body, count, body.high - count.start)


def _among_first(meaning: Meaning, body: Arrays, count: Count) -> Iterator[Arrays]:
    """Items that are counted stand among the first few: fewer arrays than are meant."""
    if count.low > REACH:
        raise unsupported(*count.blame, f"more than {REACH} items that qualify cannot be enforced")
    skipped = (None,) * count.start
    place, holds = count.item
    for size in range(count.low, min(count.low if count.high is None else count.high, REACH) + 1):
        for chosen in combinations(range(REACH), size):
            meaning.spend()
            length = chosen[-1] + 1 if chosen else 0
            least = replace(body, low=max(body.low, count.start + length if chosen else 0))
            if count.high is None:
                found = tuple(count.item if index in chosen else None for index in range(length))
                yield _with(least, ItemGroup(skipped + found, noted=False))
            else:
                found = tuple((place, holds is (index in chosen)) for index in range(length))
                yield _with(least, ItemGroup(skipped + found, (place, not holds), noted=False))


def _positions(body: Arrays, count: Count, room: int) -> Iterator[Arrays]:
    skipped = (None,) * count.start
    place, holds = count.item
    if count.high is None:
        for chosen in combinations(range(room), count.low):
            prefix = tuple(count.item if index in chosen else None for index in range(room))
            low = count.start + chosen[-1] + 1
            yield _with(replace(body, low=max(body.low, low)), ItemGroup(skipped + prefix))
        return
    for length in range(max(body.low - count.start, 0), room + 1):
        for size in range(count.low, min(count.high, length) + 1):
            for chosen in combinations(range(length), size):
                prefix = tuple((place, holds is (index in chosen)) for index in range(length))
                exact = replace(body, low=count.start + length, high=count.start + length)
                yield _with(exact, ItemGroup(skipped + prefix))


def _with(body: Arrays, group: ItemGroup) -> Arrays:
    return replace(body, groups=(*body.groups, group))


def _with_limit(body: Arrays, high: int) -> Arrays:
    return replace(body, high=high if body.high is None else min(high, body.high))


def _implies(meaning: Meaning, item: State, contrary: tuple[Any, bool]) -> bool:
    """Whether every such item is one of those that are counted, as far as can be seen."""
    return meaning.is_empty(state_of([*item, contrary]))


def _distinct(meaning: Meaning, body: Arrays) -> Iterator[ArrayShape]:
    """Every arrangement of the few values that there are."""
    assert body.unique is not None
    values = _all_values(meaning, body.item(0))
    high = len(values) if body.high is None else min(len(values), body.high)
    num_arrangements = sum(perm(len(values), size) for size in range(body.low, high + 1))
    if body.num_prefix or not values or num_arrangements > MAX_ARRANGEMENTS:
        raise unsupported(
            "uniqueItems", body.unique, "can be enforced only for items with a few possible values"
        )
    never: State = (meaning.source.never,)
    for size in range(body.low, high + 1):
        for chosen in permutations(values, size):
            states = tuple(
                ((meaning.source.made({"const": value}, meaning.source.root), True),)
                for value in chosen
            )
            yield ArrayShape(states, never, size, size)


def _all_values(meaning: Meaning, state: State) -> list[Any]:
    """All values of a state; none where they are too many."""
    found: dict[Any, Any] = {}
    for kind in meaning.kinds(state):
        for clause in meaning.clauses(state, kind):
            if clause.values is None:
                return []
            found.update((identity(value), value) for value in clause.values)
    return list(found.values())
