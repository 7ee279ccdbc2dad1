"""States as an automaton's table: equal ones are merged, bytes that never differ are a class."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from octavo.errors import UnsupportedConstraint
from octavo_plugins.guided.automaton.subsets import Row
from octavo_registry.guided import CALL, GO, RETURN, ByteAutomaton

MOST_WORDS = 2**18
"""Words of a table: 1 MiB."""


def automaton_of(rows: list[Row]) -> ByteAutomaton:
    """The automaton that begins in the first state."""
    rows = _merged(rows)
    sets = sorted({data for row in rows for data, *_ in (*row.steps, *row.calls)})
    classes_B, columns = _classes(sets)
    num_columns = int(classes_B.max()) + 2
    if len(rows) * num_columns > MOST_WORDS:
        raise UnsupportedConstraint(
            f"the constraint takes a table of {len(rows)} states and {num_columns} columns; "
            f"{MOST_WORDS} words are the most"
        )
    calls: dict[tuple[int, int], int] = {}
    table: list[list[int]] = []
    for row in rows:
        entries = [RETURN if row.ends else -1] * num_columns
        if row.completes:
            entries[-1] = GO
        for data, target in row.steps:
            for column in columns[data]:
                entries[column] = 4 * target + GO
        for data, part, behind in row.calls:
            entry = 4 * calls.setdefault((part, behind), len(calls)) + CALL
            for column in columns[data]:
                entries[column] = entry
        table.append(entries)
    return ByteAutomaton(
        classes_B=classes_B,
        table_QC=np.array(table, np.int32),
        calls_K2=np.array(list(calls), np.int32).reshape(-1, 2),
    )


def _merged(rows: list[Row]) -> list[Row]:
    """Return the states that can be reached, the first in front; equal ones are one.

    Each comes behind what it leads to, so that equal ends make equal what leads to them. In loops
    some equal states remain.
    """
    names: dict[int, int] = {}
    known: dict[tuple[object, ...], int] = {}
    kept: list[Row] = []
    for state in _ends_first(rows):
        row = rows[state]
        sets: dict[int, int] = {}
        for data, target in row.steps:
            # Below 0: a loop leads back to a state that has no name yet.
            name = names.get(target, ~target)
            sets[name] = sets.get(name, 0) | data
        calls = [
            (data, names.get(part, ~part), names.get(behind, ~behind))
            for data, part, behind in row.calls
        ]
        key = (frozenset(sets.items()), frozenset(calls), row.ends, row.completes)
        name = known.setdefault(key, len(kept))
        if name == len(kept):
            steps = [(data, target) for target, data in sets.items()]
            kept.append(Row(steps, calls, row.ends, row.completes))
        names[state] = name
    first = names[0]

    def number(name: int) -> int:
        found = names[~name] if name < 0 else name
        return 0 if found == first else found + (found < first)

    for row in kept:
        row.steps = [(data, number(target)) for data, target in row.steps]
        row.calls = [(data, number(part), number(behind)) for data, part, behind in row.calls]
    return [kept.pop(first), *kept]


def _ends_first(rows: list[Row]) -> list[int]:
    """The states that can be reached, each behind those that it leads to but for loops."""
    order: list[int] = []
    seen = {0}
    waiting = [(0, iter(_targets(rows[0])))]
    while waiting:
        state, targets = waiting[-1]
        for target in targets:
            if target not in seen:
                seen.add(target)
                waiting.append((target, iter(_targets(rows[target]))))
                break
        else:
            order.append(state)
            waiting.pop()
    return order


def _targets(row: Row) -> list[int]:
    return [
        *(target for _, target in row.steps),
        *(state for _, part, behind in row.calls for state in (part, behind)),
    ]


def _classes(sets: list[int]) -> tuple[NDArray[np.uint8], dict[int, list[int]]]:
    """Each byte's class, and the classes of each set."""
    data = b"".join(each.to_bytes(32, "little") for each in sets)
    bits_SB = np.unpackbits(
        np.frombuffer(data, np.uint8).reshape(-1, 32), axis=1, bitorder="little"
    )
    packed_BS = np.ascontiguousarray(np.packbits(bits_SB, axis=0).T)
    known: dict[bytes, int] = {}
    firsts: list[int] = []
    classes: list[int] = []
    for byte in range(256):
        key = packed_BS[byte].tobytes()
        if key not in known:
            known[key] = len(known)
            firsts.append(byte)
        classes.append(known[key])
    members_SC = bits_SB[:, firsts]
    columns = {
        each: np.flatnonzero(row).tolist() for each, row in zip(sets, members_SC, strict=True)
    }
    return np.array(classes, np.uint8), columns
