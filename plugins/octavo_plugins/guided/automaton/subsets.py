"""A graph made deterministic: states are sets of nodes, of which each byte leaves one set.

A part that another node could be confused with is entered without a call: its nodes then know what
is behind them. So alternatives go side by side as long as their bytes are the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from octavo.errors import UnsupportedConstraint
from octavo_plugins.guided.automaton.parts import (
    DONE,
    END,
    PLAIN,
    QUOTE,
    TAIL_STARTS,
    Call,
    Fork,
    Graph,
    Step,
    Text,
)

MOST_WORK = 100_000
"""Nodes of all states together, and the states themselves: some 0.3 seconds."""
WORK_OF_STATE = 4
MOST_OPEN = 8
"""Parts inside one another that are entered without a call."""
RUN = 32
"""Characters that a bounded string counts in a part, which all such strings share."""

Item = tuple[int, int]
"""A node, and the context that it was entered in; 0: what called the part."""


@dataclass(slots=True)
class Row:
    """What bytes lead to from a state; sets of bytes do not meet."""

    steps: list[tuple[int, int]] = field(default_factory=list)
    calls: list[tuple[int, int, int]] = field(default_factory=list)
    """Bytes, the state that is called, the state behind it."""
    ends: bool = False
    """A part may end here."""
    completes: bool = False
    """The text may."""


class Subsets:
    """All states that can be reached; the first is the beginning."""

    def __init__(self, graph: Graph, start: int) -> None:
        self._graph = graph
        self._states: dict[frozenset[Item], int] = {}
        self._items: list[frozenset[Item]] = []
        self._contexts: list[tuple[int, int, int]] = [(0, 0, 0)]
        """The node behind a part, the context of that, how many are open."""
        self._context_ids: dict[tuple[int, int], int] = {}
        self._firsts: dict[int, int] = {}
        self._work = MOST_WORK
        self.rows: list[Row] = []
        self._state([(start, 0)])
        while len(self.rows) < len(self._items):
            self.rows.append(self._row(self._items[len(self.rows)]))

    def _state(self, items: Iterable[Item]) -> int:
        key = frozenset(items)
        found = self._states.get(key)
        if found is None:
            found = self._states[key] = len(self._items)
            self._items.append(key)
            self._spend(WORK_OF_STATE)
        return found

    def _row(self, items: frozenset[Item]) -> Row:
        if len(items) == 1:  # most states: one of the bytes of a name
            ((node, context),) = items
            each = self._graph.nodes[node]
            if isinstance(each, Step):
                return Row(steps=[(each.bytes, self._state(((each.target, context),)))])
        leaves = self._leaves(items)
        if run := self._run(leaves):
            return run
        while True:
            row, steps, calls = Row(), dict[int, list[Item]](), dict[int, list[Item]]()
            for node, context in self._opened(leaves):
                match self._graph.nodes[node]:
                    case Step(data, target):
                        steps.setdefault(data, []).append((target, context))
                    case Call(part, target):
                        calls.setdefault(part, []).append((target, context))
                    case _:
                        row.ends |= node == END
                        row.completes |= node == DONE
            confused = self._confused(steps, calls)
            if not confused:
                break
            leaves = self._entered(leaves, confused)
        row.steps = [(data, self._state(after)) for data, after in self._apart(steps)]
        row.calls = [
            (self._first(part), self._state([(part, 0)]), self._state(after))
            for part, after in calls.items()
        ]
        return row

    def _leaves(self, items: Iterable[Item]) -> list[Item]:
        """What forks and ends of parts lead to."""
        found: dict[Item, None] = {}
        seen, waiting = set(items), list(items)
        while waiting:
            item = waiting.pop()
            node, context = item
            behind: list[Item] = []
            each = self._graph.nodes[node]
            if node == END and context:
                target, outer, _ = self._contexts[context]
                behind = [(target, outer)]
            elif isinstance(each, Fork) and node not in (END, DONE):
                behind = [(one, context) for one in each.nodes]
            else:
                found[item] = None
            for one in behind:
                if one not in seen:
                    seen.add(one)
                    waiting.append(one)
        self._spend(len(seen))
        return list(found)

    def _spend(self, work: int) -> None:
        self._work -= work
        if self._work < 0:
            raise UnsupportedConstraint("the constraint is too large for a table of states")

    def _opened(self, leaves: Iterable[Item]) -> Iterator[Item]:
        for node, context in leaves:
            each = self._graph.nodes[node]
            if isinstance(each, Text):
                yield from ((one, context) for one in self._graph.opened(each))
            else:
                yield node, context

    def _run(self, leaves: list[Item]) -> Row | None:
        """A long string's next characters as one part, if there are no other leaves."""
        sizes = set()
        texts: list[tuple[int, int]] = []
        for node, context in leaves:
            each = self._graph.nodes[node]
            if not isinstance(each, Text):
                return None
            sizes.add((each.low, each.high))
            texts.append((each.target, context))
        if len(sizes) != 1:
            return None
        ((low, high),) = sizes
        most = low or high or 0
        if most <= RUN:
            return None
        num = (most - 1) % RUN + 1
        rest = max(low - num, 0), None if high is None else high - num
        behind = [(self._graph.text(*rest, target), context) for target, context in texts]
        part = self._graph.run(num, is_exact=low > 0)
        row = Row(calls=[(PLAIN | TAIL_STARTS, self._state([(part, 0)]), self._state(behind))])
        if not low:
            row.steps = [(QUOTE, self._state(texts))]
        return row

    def _confused(self, steps: dict[int, list[Item]], calls: dict[int, list[Item]]) -> set[int]:
        """Parts of which some first byte may mean something else too."""
        if not calls:
            return set()
        firsts = {part: self._first(part) for part in calls}
        seen = again = 0
        for data in steps:
            seen |= data
        for data in firsts.values():
            again |= seen & data
            seen |= data
        return {part for part, data in firsts.items() if data & again} if again else set()

    def _entered(self, leaves: list[Item], confused: set[int]) -> list[Item]:
        """The leaves with the parts' own nodes in place of calls."""
        found: list[Item] = []
        for node, context in self._opened(leaves):
            each = self._graph.nodes[node]
            if isinstance(each, Call) and each.part in confused:
                found.append((each.part, self._context(each.target, context)))
            else:
                found.append((node, context))
        return self._leaves(found)

    def _context(self, target: int, outer: int) -> int:
        key = (target, outer)
        found = self._context_ids.get(key)
        if found is None:
            depth = self._contexts[outer][2] + 1
            if depth > MOST_OPEN:
                raise UnsupportedConstraint(
                    "alternatives that are nested begin alike, so that no byte tells them apart"
                )
            found = self._context_ids[key] = len(self._contexts)
            self._contexts.append((target, outer, depth))
        return found

    def _first(self, part: int) -> int:
        """The bytes that a part may begin with."""
        found = self._firsts.get(part)
        if found is None:
            self._firsts[part] = found = 0  # a part that begins with itself adds nothing
            for node, _ in self._opened(self._leaves([(part, 0)])):
                match self._graph.nodes[node]:
                    case Step(data, _):
                        found |= data
                    case Call(inner, _):
                        found |= self._first(inner)
            self._firsts[part] = found
        return found

    def _apart(self, steps: dict[int, list[Item]]) -> Iterator[tuple[int, list[Item]]]:
        """Sets of bytes that do not meet, with all that each leads to."""
        total = union = 0
        for data in steps:
            total += data
            union |= data
        if total == union:
            yield from steps.items()
            return
        apart: list[tuple[int, list[Item]]] = []
        for data, targets in steps.items():
            self._spend(len(apart))
            rest = data
            pieces: list[tuple[int, list[Item]]] = []
            for other, others in apart:
                if common := other & rest:
                    pieces.append((common, [*others, *targets]))
                    if other != common:
                        pieces.append((other & ~common, others))
                    rest &= ~common
                else:
                    pieces.append((other, others))
            if rest:
                pieces.append((rest, targets))
            apart = pieces
        yield from apart
