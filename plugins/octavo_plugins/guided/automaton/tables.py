"""States as a machine's table: equal ones are merged, and bytes that never differ are a class."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from octavo.errors import UnsupportedConstraint
from octavo_plugins.guided.automaton.subsets import Row
from octavo_registry.guided import CALL, GO, RETURN, ByteMachine

MOST_WORDS = 2**18
"""Of a table: 1 MiB."""
MOST_CLASSES = 256


def machine_of(rows: list[Row]) -> ByteMachine:
    """The machine that begins in the first state."""
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
    return ByteMachine(
        classes_B=classes_B,
        table_QC=np.array(table, np.int32),
        calls_K2=np.array(list(calls), np.int32).reshape(-1, 2),
    )


def _merged(rows: list[Row]) -> list[Row]:
    """Those that can be reached, the first in front; equal ones are one.

    Each comes behind what it leads to, so that equal ends make equal what leads to them. In loops
    some equal states remain.
    """
    names: dict[int, int] = {}
    known: dict[tuple[object, ...], int] = {}
    kept: list[Row] = []
    order = _ends_first(rows)
    # A loop leads back to states that have no name yet: these keep a name of their own.
    for place in order:
        row = rows[place]
        targets: dict[int, int] = {}
        for data, target in row.steps:
            name = names.get(target, ~target)
            targets[name] = targets.get(name, 0) | data
        calls = [
            (data, names.get(part, ~part), names.get(behind, ~behind))
            for data, part, behind in row.calls
        ]
        key = (frozenset(targets.items()), frozenset(calls), row.ends, row.completes)
        found = known.get(key)
        if found is None:
            found = known[key] = len(kept)
            steps = [(data, name) for name, data in targets.items()]
            kept.append(Row(steps, calls, row.ends, row.completes))
        names[place] = found
    num = len(kept)
    first = names[0]

    def final(name: int) -> int:
        """Numbers from the back, so that the first is the beginning."""
        number = num - 1 - (names[~name] if name < 0 else name)
        return number

    if first != num - 1:
        raise AssertionError("the beginning is not the last of all")
    for row in kept:
        row.steps = [(data, final(name)) for data, name in row.steps]
        row.calls = [(data, final(part), final(behind)) for data, part, behind in row.calls]
    return kept[::-1]


def _ends_first(rows: list[Row]) -> list[int]:
    """The states that can be reached, each behind those that it leads to, as far as there are no
    loops."""
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
