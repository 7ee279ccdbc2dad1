"""Sets of strings as regular expressions: matched, intersected and complemented by derivatives.

The nodes are values, equal when built alike, so that a set's derivatives are finitely many states
and each operation is a walk over them, bounded by the number of states it may make.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

Range = tuple[int, int]
LAST = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)


class TooManyStates(Exception):
    """An operation would need more work than it may do."""


class _Node:
    """Finds out about itself once."""

    @cached_property
    def hash(self) -> int:
        names: tuple[str, ...] = type(self).__match_args__  # type: ignore[attr-defined]
        return hash((type(self).__name__, *(getattr(self, name) for name in names)))

    @cached_property
    def steps(self) -> tuple[tuple[Chars, Regex], ...]:
        return tuple(_steps(self))  # type: ignore[arg-type]

    @cached_property
    def after(self) -> dict[int, Regex]:
        """What may follow which character, as far as somebody has asked: states share parts."""
        return {}

    @cached_property
    def size(self) -> int:
        """How many nodes it is written with."""
        parts: Collection[Regex] = children(self)  # type: ignore[arg-type]
        return 1 + sum(part.size for part in parts)

    @cached_property
    def has_algebra(self) -> bool:
        """Whether ``Both`` or ``Other`` is in it."""
        parts: Collection[Regex] = children(self)  # type: ignore[arg-type]
        return isinstance(self, Both | Other) or any(part.has_algebra for part in parts)


def _hash(node: _Node) -> int:
    return node.hash


@dataclass(frozen=True)
class Chars(_Node):
    """One character out of sorted, separate ranges."""

    ranges: tuple[Range, ...]
    __hash__ = _hash
    nullable = False


@dataclass(frozen=True)
class Cat(_Node):
    """One after the other."""

    parts: tuple[Regex, ...]
    __hash__ = _hash

    @cached_property
    def nullable(self) -> bool:
        """Whether the empty string is in the set."""
        return all(part.nullable for part in self.parts)


@dataclass(frozen=True)
class Alt(_Node):
    """Any one of them."""

    parts: frozenset[Regex]
    __hash__ = _hash

    @cached_property
    def nullable(self) -> bool:
        """Whether the empty string is in the set."""
        return any(part.nullable for part in self.parts)


@dataclass(frozen=True)
class Both(_Node):
    """All of them at once."""

    parts: frozenset[Regex]
    __hash__ = _hash

    @cached_property
    def nullable(self) -> bool:
        """Whether the empty string is in the set."""
        return all(part.nullable for part in self.parts)


@dataclass(frozen=True)
class Other(_Node):
    """Every string that is not in the set."""

    part: Regex
    __hash__ = _hash

    @cached_property
    def nullable(self) -> bool:
        """Whether the empty string is in the set."""
        return not self.part.nullable


@dataclass(frozen=True)
class Repeat(_Node):
    """So many times; ``high`` None: without end."""

    part: Regex
    low: int
    high: int | None
    __hash__ = _hash

    @property
    def nullable(self) -> bool:
        """Whether the empty string is in the set."""
        return self.low == 0 or self.part.nullable


Regex = Chars | Cat | Alt | Both | Other | Repeat


def chars(ranges: Iterable[Range]) -> Chars:
    """One character out of ranges in any order; halves of surrogate pairs are no characters."""
    merged: list[Range] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    first, last = _SURROGATES
    kept: list[Range] = []
    for low, high in merged:
        pieces = ((low, min(high, first - 1)), (max(low, last + 1), high))
        kept += [piece for piece in pieces if piece[0] <= piece[1]]
    return Chars(tuple(kept))


def other_chars(ranges: Iterable[Range]) -> Chars:
    """One character outside of the ranges."""
    gaps, position = [], 0
    for low, high in sorted(ranges):
        if position < low:
            gaps.append((position, low - 1))
        position = max(position, high + 1)
    if position <= LAST:
        gaps.append((position, LAST))
    return chars(gaps)


NOTHING = Chars(())
EMPTY_TEXT = Cat(())
ANY_CHAR = other_chars(())
ANY_TEXT = Repeat(ANY_CHAR, 0, None)


def text(value: str) -> Regex:
    """Exactly this string."""
    return cat(*(Chars(((ord(char), ord(char)),)) for char in value))


def cat(*parts: Regex) -> Regex:
    """One after the other."""
    flat: list[Regex] = []
    for part in parts:
        for item in part.parts if isinstance(part, Cat) else (part,):
            if item == NOTHING:
                return NOTHING
            if not (flat and item == ANY_TEXT == flat[-1]):
                flat.append(item)
    return flat[0] if len(flat) == 1 else Cat(tuple(flat))


def alt(*parts: Regex) -> Regex:
    """Any one of them."""
    flat: set[Regex] = set()
    ranges: list[Range] = []
    for part in parts:
        for item in part.parts if isinstance(part, Alt) else (part,):
            if isinstance(item, Chars):
                ranges += item.ranges
            else:
                flat.add(item)
    if ranges:
        flat.add(chars(ranges))
    if ANY_TEXT in flat:
        return ANY_TEXT
    if EMPTY_TEXT in flat and any(part.nullable for part in flat if part != EMPTY_TEXT):
        flat.discard(EMPTY_TEXT)
    return Alt(frozenset(flat)) if len(flat) > 1 else next(iter(flat), NOTHING)


def both(*parts: Regex) -> Regex:
    """All of them at once."""
    flat: set[Regex] = set()
    for part in parts:
        flat |= part.parts if isinstance(part, Both) else {part}
    flat.discard(ANY_TEXT)
    if NOTHING in flat:
        return NOTHING
    return Both(frozenset(flat)) if len(flat) > 1 else next(iter(flat), ANY_TEXT)


def other(part: Regex) -> Regex:
    """Every string that is not in the set."""
    if isinstance(part, Other):
        return part.part
    if part == NOTHING:
        return ANY_TEXT
    return NOTHING if part == ANY_TEXT else Other(part)


def repeat(part: Regex, low: int, high: int | None) -> Regex:
    """So many times, one after the other."""
    if high == 0 or part == EMPTY_TEXT or (part == NOTHING and low == 0):
        return EMPTY_TEXT
    if part == NOTHING or (low, high) == (1, 1):
        return part
    if part.nullable:
        low = 0
    if isinstance(part, Repeat) and (part.low, part.high) == (0, None):
        return part
    return Repeat(part, low, high)


def derivative(node: Regex, char: int) -> Regex:
    """What may follow the character in a string of the set."""
    if isinstance(node, Chars):
        inside = any(low <= char <= high for low, high in node.ranges)
        return EMPTY_TEXT if inside else NOTHING
    found = node.after.get(char)
    if found is None:
        found = node.after[char] = _derivative(node, char)
    return found


def _derivative(node: Cat | Alt | Both | Other | Repeat, char: int) -> Regex:
    match node:
        case Cat(parts):
            results = []
            for index, part in enumerate(parts):
                results.append(cat(derivative(part, char), *parts[index + 1 :]))
                if not part.nullable:
                    break
            return alt(*results)
        case Alt(choices):
            return alt(*(derivative(part, char) for part in choices))
        case Both(choices):
            return both(*(derivative(part, char) for part in choices))
        case Other(part):
            return other(derivative(part, char))
        case Repeat(part, low, high):
            rest = repeat(part, max(low - 1, 0), None if high is None else high - 1)
            return cat(derivative(part, char), rest)


def starts(node: Regex) -> set[int]:
    """Characters at which what the set does with the first character may change."""
    match node:
        case Chars(ranges):
            return {edge for low, high in ranges for edge in (low, high + 1)}
        case Cat(parts):
            edges: set[int] = set()
            for part in parts:
                edges |= starts(part)
                if not part.nullable:
                    break
            return edges
        case Alt(choices) | Both(choices):
            return set().union(*(starts(part) for part in choices))
        case Other(part) | Repeat(part):
            return starts(part)


def _steps(node: Regex) -> Iterator[tuple[Chars, Regex]]:
    """Each set of characters that leads somewhere, and where."""
    edges = sorted({0, *starts(node)} - {LAST + 1})
    by_target: dict[Regex, list[Range]] = {}
    for low, after in zip(edges, [*edges[1:], LAST + 1], strict=True):
        target = derivative(node, low)
        if target != NOTHING:
            by_target.setdefault(target, []).append((low, after - 1))
    for target, ranges in by_target.items():
        if (label := chars(ranges)) != NOTHING:
            yield label, target


def matches(node: Regex, value: str, max_work: int = 1_000_000) -> bool:
    """Whether the string is in the set."""
    for char in value:
        if node == ANY_TEXT:
            return True
        max_work -= 1 + sum(1 + len(children(part)) for part in children(node))
        if max_work < 0:
            raise TooManyStates
        node = derivative(node, ord(char))
        if node == NOTHING:
            return False
    return node.nullable


def is_empty(node: Regex, max_states: int = 300) -> bool:
    """Whether no string is in the set."""
    if not node.has_algebra:
        return node == NOTHING  # which is left out wherever it would be a part
    seen, waiting, work = {node}, [node], 0
    while waiting:
        state = waiting.pop()
        if state.nullable:
            return False
        work += sum(1 + len(children(part)) for part in children(state))
        if work > 100 * max_states:
            raise TooManyStates
        for _, target in state.steps:
            if target not in seen:
                if len(seen) == max_states:
                    raise TooManyStates
                seen.add(target)
                waiting.append(target)
    return True


def shortest(node: Regex) -> int | None:
    """Characters of its shortest string; None where that is not seen at once, or there is none."""
    if node.has_algebra or node == NOTHING:
        return None
    match node:
        case Cat(parts):
            return sum(shortest(part) or 0 for part in parts)
        case Alt(choices):
            return min(shortest(part) or 0 for part in choices)
        case Repeat(part, low):
            return low * (shortest(part) or 0)
    return 1


def num_unrolled(node: Regex) -> int:
    """How many sets of characters it has where repetitions are written as often as they may be."""
    if isinstance(node, Repeat):
        return num_unrolled(node.part) * max(1, node.low, node.high or 0)
    return sum(map(num_unrolled, children(node))) or 1


def automaton(node: Regex, max_states: int) -> dict[Regex, list[tuple[Chars, Regex]]]:
    """Every state that can be reached, with its steps."""
    table: dict[Regex, list[tuple[Chars, Regex]]] = {}
    waiting = [node]
    while waiting:
        state = waiting.pop()
        if len(table) == max_states:
            raise TooManyStates
        if state not in table:
            table[state] = list(state.steps)
            waiting += [target for _, target in table[state]]
    return table


def children(node: Regex) -> Collection[Regex]:
    """The sets that a set is made of."""
    match node:
        case Cat(parts):
            return parts
        case Alt(choices) | Both(choices):
            return choices
        case Other(part) | Repeat(part):
            return (part,)
    return ()
