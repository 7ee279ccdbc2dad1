"""A grammar of characters, and which of its texts and runs a greedy lexer may take in one piece."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

MOST_COPIES = 16


@dataclass(frozen=True, slots=True)
class NameNode:
    """A rule's."""

    name: str


@dataclass(frozen=True, slots=True)
class TextNode:
    """Exactly these characters."""

    text: str


@dataclass(frozen=True, slots=True)
class CharsNode:
    """A character of some ranges; of a run, one or more."""

    ranges: tuple[tuple[int, int], ...]
    is_run: bool = False


@dataclass(frozen=True, slots=True)
class SequenceNode:
    """One after the other."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class ChoiceNode:
    """Any one."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class LoopNode:
    """The part, so many times."""

    part: Node
    least: int
    most: int | None


Node = NameNode | TextNode | CharsNode | SequenceNode | ChoiceNode | LoopNode
Leaf = TextNode | CharsNode


def split_terminals(rules: dict[str, Node], start: str) -> frozenset[Node]:
    """Make runs of repeated characters; return the texts and runs that must be split again.

    A text may be one terminal where no other terminal that can stand in its place begins with its
    first character; a run, where besides none of its characters can follow.
    """
    for name, rule in rules.items():
        rules[name] = _with_runs(rule)
    neighbours = _Neighbours(rules)
    split: set[Node] = set()
    for together in (neighbours.firsts[start], *neighbours.following.values()):
        by_value = list(dict.fromkeys(neighbours.leaves[place] for place in together))
        for leaf in by_value:
            if _is_long(leaf) and any(_meet(leaf, each) for each in by_value if each != leaf):
                split.add(leaf)
    for place, behind in neighbours.following.items():
        leaf = neighbours.leaves[place]
        if isinstance(leaf, CharsNode) and leaf.is_run:
            nexts = {neighbours.leaves[each] for each in behind}
            if any(_meet(leaf, each) for each in nexts):
                split.add(leaf)
    return frozenset(split)


def _with_runs(node: Node) -> Node:
    match node:
        case LoopNode(CharsNode(ranges), least, None) if least <= 1:
            run = CharsNode(ranges, is_run=True)
            return run if least else LoopNode(run, 0, 1)
        case LoopNode(ChoiceNode(parts), least, None) if least <= 1:
            runs = (
                CharsNode(p.ranges, is_run=True) if isinstance(p, CharsNode) else p for p in parts
            )
            return LoopNode(ChoiceNode(tuple(map(_with_runs, runs))), least, None)
        case LoopNode(CharsNode() as part, least, most) if least == most and least <= MOST_COPIES:
            # What follows the last one does not follow the others.
            return SequenceNode((part,) * least)
        case LoopNode(part, least, most):
            return LoopNode(_with_runs(part), least, most)
        case SequenceNode(parts):
            return SequenceNode(tuple(map(_with_runs, parts)))
        case ChoiceNode(parts):
            return ChoiceNode(tuple(map(_with_runs, parts)))
    return node


def _is_long(leaf: Leaf) -> bool:
    return len(leaf.text) > 1 if isinstance(leaf, TextNode) else leaf.is_run


def _meet(one: Leaf, other: Leaf) -> bool:
    """Whether a character can begin both."""
    return any(
        low <= others_high and others_low <= high
        for low, high in _begin(one)
        for others_low, others_high in _begin(other)
    )


def _begin(leaf: Leaf) -> tuple[tuple[int, int], ...]:
    return leaf.ranges if isinstance(leaf, CharsNode) else ((ord(leaf.text[0]),) * 2,)


@dataclass(frozen=True, slots=True)
class _Edges:
    """The places at which a part can begin and end, and whether it can be empty."""

    firsts: frozenset[int] = frozenset()
    lasts: frozenset[int] = frozenset()
    empty: bool = False


class _Neighbours:
    """Which leaves can begin a rule, and which can follow which, over all rules."""

    def __init__(self, rules: Mapping[str, Node]) -> None:
        self.leaves: dict[int, Leaf] = {}
        self.following: dict[int, set[int]] = defaultdict(set)
        self._edges = dict.fromkeys(rules, _Edges())
        while True:
            self.leaves.clear()  # places are numbered anew, in the same order
            found = {name: self._of(rule) for name, rule in rules.items()}
            if found == self._edges:
                break
            self._edges = found
        self.firsts = {name: edges.firsts for name, edges in found.items()}

    def _of(self, node: Node) -> _Edges:
        match node:
            case NameNode(name):
                return self._edges[name]
            case TextNode(""):
                return _Edges(empty=True)
            case TextNode() | CharsNode():
                place = len(self.leaves)
                self.leaves[place] = node
                return _Edges(frozenset({place}), frozenset({place}))
            case SequenceNode(parts):
                return self._of_sequence(map(self._of, parts))
            case ChoiceNode(parts):
                found = list(map(self._of, parts))
                return _Edges(
                    frozenset().union(*(each.firsts for each in found)),
                    frozenset().union(*(each.lasts for each in found)),
                    any(each.empty for each in found),
                )
            case LoopNode(part, least, most):
                return self._of_loop(part, least, most)

    def _of_sequence(self, parts: Iterator[_Edges]) -> _Edges:
        whole = _Edges(empty=True)
        for each in parts:
            self._link(whole.lasts, each.firsts)
            whole = _Edges(
                whole.firsts | each.firsts if whole.empty else whole.firsts,
                whole.lasts | each.lasts if each.empty else each.lasts,
                whole.empty and each.empty,
            )
        return whole

    def _of_loop(self, part: Node, least: int, most: int | None) -> _Edges:
        edges = self._of(part)
        if most is None or most > 1:
            for place in edges.lasts:
                # Two runs of one loop, one behind the other, are as well one.
                again = most is None and least <= 1 and self._is_run_of(part, place)
                self._link((place,), edges.firsts - {place} if again else edges.firsts)
        return _Edges(edges.firsts, edges.lasts, edges.empty or least == 0)

    def _is_run_of(self, part: Node, place: int) -> bool:
        leaf = self.leaves.get(place)  # none yet: of a rule further down
        return isinstance(part, ChoiceNode) and isinstance(leaf, CharsNode) and leaf in part.parts

    def _link(self, lasts: Iterable[int], firsts: frozenset[int]) -> None:
        for last in lasts:
            self.following[last] |= firsts
