"""What a stack of so many levels means for states: which lead to an end, and with what room.

A text must never stand where it cannot end. So steps into what no text ends in are taken away, and
where the stack may be full, a step into what takes more levels to end looks first whether they are
there: it calls as many states inside one another as there must be levels, all of which return.
"""

from __future__ import annotations

from octavo.errors import UnsupportedConstraint
from octavo_plugins.guided.automaton.parts import ALL_BYTES
from octavo_plugins.guided.automaton.subsets import Row
from octavo_registry.guided import MOST_DEPTH

MOST_NEEDED = 16
"""Levels that are looked for: each takes two hops of the byte's."""
_NEVER = 1 << 30


def bounded(rows: list[Row]) -> list[Row]:
    """The rows without dead ends; raises where there is nothing else."""
    needs = _needs(rows)
    if needs[0] == _NEVER:
        raise UnsupportedConstraint("no text satisfies the constraint")
    for row in rows:
        row.steps = [step for step in row.steps if needs[step[1]] < _NEVER]
        row.calls = [call for call in row.calls if max(needs[call[1]], needs[call[2]]) < _NEVER]
    _Guards(rows, needs, _depths(rows)).add()
    return rows


def _needs(rows: list[Row]) -> list[int]:
    """How many levels it takes at least to come from a state to the end of its part."""
    needs = [0 if row.ends or row.completes else _NEVER for row in rows]
    changed = True
    while changed:
        changed = False
        for state in range(len(rows) - 1, -1, -1):
            row, least = rows[state], needs[state]
            for _, target in row.steps:
                if needs[target] < least:
                    least = needs[target]
            for _, called, behind in row.calls:
                least = min(least, max(1 + needs[called], needs[behind]))
            if least < needs[state]:
                needs[state] = least
                changed = True
    return needs


def _depths(rows: list[Row]) -> list[int]:
    """On what level a state may be at most; the last one, where something contains itself."""
    depths = [-1] * len(rows)
    starts = {0: 0}
    waiting = [0]
    while waiting:
        start = waiting.pop()
        depth = starts[start]
        within, called = [start], set[int]()
        while within:
            state = within.pop()
            if depths[state] >= depth:
                continue
            depths[state] = depth
            row = rows[state]
            within += (target for _, target in row.steps)
            for _, part, behind in row.calls:
                called.add(part)
                within.append(behind)
        for part in called:
            if starts.get(part, -1) < min(depth + 1, MOST_DEPTH):
                starts[part] = min(depth + 1, MOST_DEPTH)
                waiting.append(part)
    return depths


class _Guards:
    """Makes sure that there is room before a byte is taken that needs more."""

    def __init__(self, rows: list[Row], needs: list[int], depths: list[int]) -> None:
        self._rows = rows
        self._needs = needs
        self._depths = depths
        self._rooms: list[int] = []

    def add(self) -> None:
        """To all states that may be too deep for what follows them."""
        needs = self._needs
        for state, depth in enumerate(self._depths):
            row = self._rows[state]
            steps, calls = row.steps, row.calls
            row.steps, row.calls = [], []
            for step in steps:
                need = needs[step[1]]
                if needs[state] < need > MOST_DEPTH - depth:
                    row.calls.append((step[0], self._room(need), self._added(Row(steps=[step]))))
                else:
                    row.steps.append(step)
            for call in calls:
                need = max(1 + needs[call[1]], needs[call[2]])
                if needs[state] < need > MOST_DEPTH - depth:
                    row.calls.append((call[0], self._room(need), self._added(Row(calls=[call]))))
                else:
                    row.calls.append(call)

    def _room(self, need: int) -> int:
        """A state that is called and returns where there are so many levels, with its own."""
        if need > MOST_NEEDED:
            raise UnsupportedConstraint("the constraint is too deep for an automaton's stack")
        if not self._rooms:
            self._rooms.append(self._added(Row(ends=True)))
        while len(self._rooms) < need:
            call = (ALL_BYTES, self._rooms[-1], self._rooms[0])
            self._rooms.append(self._added(Row(calls=[call])))
        return self._rooms[need - 1]

    def _added(self, row: Row) -> int:
        self._rows.append(row)
        return len(self._rows) - 1
