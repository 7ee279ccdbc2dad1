"""What a stack of so many levels means for states: which lead to an end, and with what room.

A text must never stand where it cannot end. So steps into what no text ends in are taken away, and
where something may be nested without limit, a step into what takes more levels to end looks first
whether they are there: it calls as many parts inside one another as there must be levels, all of
which return at once.
"""

from __future__ import annotations

from octavo.errors import UnsupportedConstraint
from octavo_plugins.guided.automaton.parts import ALL_BYTES
from octavo_plugins.guided.automaton.subsets import Row
from octavo_registry.guided import MOST_DEPTH

MOST_NEEDED = 16
"""Levels that are looked for."""
_NEVER = 1 << 30


def bounded(rows: list[Row]) -> list[Row]:
    """The rows without dead ends; raises where there is nothing else."""
    needs = _needs(rows)
    if needs[0] == _NEVER:
        raise UnsupportedConstraint("no text satisfies the constraint")
    for row in rows:
        row.steps = [step for step in row.steps if needs[step[1]] < _NEVER]
        row.calls = [call for call in row.calls if max(needs[call[1]], needs[call[2]]) < _NEVER]
    if _most_depth(rows) > MOST_DEPTH:
        if needs[0] > MOST_NEEDED:
            raise UnsupportedConstraint("the constraint is nested too deep for a machine's stack")
        _Guards(rows, needs).add()
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


def _most_depth(rows: list[Row]) -> int:
    """The levels that a text may take; more than there are, where something contains itself."""
    depths: dict[int, int] = {}

    def depth(start: int) -> int:
        if start in depths:
            return depths[start]
        depths[start] = MOST_DEPTH + 1  # until it is known: what comes back here has no limit
        seen, waiting, called = {start}, [start], set[int]()
        while waiting:
            row = rows[waiting.pop()]
            called.update(part for _, part, _ in row.calls)
            for state in (*(step[1] for step in row.steps), *(call[2] for call in row.calls)):
                if state not in seen:
                    seen.add(state)
                    waiting.append(state)
        depths[start] = max((1 + depth(part) for part in called), default=0)
        return depths[start]

    return depth(0)


class _Guards:
    """Makes sure that there is room before a byte is taken that needs more."""

    def __init__(self, rows: list[Row], needs: list[int]) -> None:
        self._rows = rows
        self._needs = needs
        self._returns = self._added(Row(ends=True))
        self._rooms = [self._returns]

    def add(self) -> None:
        """To all rows."""
        needs = self._needs
        for state in range(len(needs)):
            row = self._rows[state]
            steps, calls = row.steps, row.calls
            row.steps, row.calls = [], []
            for step in steps:
                need = needs[step[1]]
                if need > needs[state]:
                    behind = self._added(Row(steps=[step]))
                    row.calls.append((step[0], self._room(need), behind))
                else:
                    row.steps.append(step)
            for call in calls:
                need = max(1 + needs[call[1]], needs[call[2]])
                if need > needs[state]:
                    behind = self._added(Row(calls=[call]))
                    row.calls.append((call[0], self._room(need), behind))
                else:
                    row.calls.append(call)

    def _room(self, need: int) -> int:
        """A state that is called and returns where there are so many levels, with its own."""
        if need > MOST_NEEDED:
            raise UnsupportedConstraint("the constraint is nested too deep for a machine's stack")
        while len(self._rooms) < need:
            call = (ALL_BYTES, self._rooms[-1], self._returns)
            self._rooms.append(self._added(Row(calls=[call])))
        return self._rooms[need - 1]

    def _added(self, row: Row) -> int:
        self._rows.append(row)
        return len(self._rows) - 1
