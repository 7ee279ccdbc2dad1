"""Sets of strings without intersections and complements, as patterns can say them."""

from __future__ import annotations

from octavo.guided.schema.regex import (
    EMPTY_TEXT,
    NOTHING,
    Chars,
    Regex,
    TooManyStates,
    alt,
    automaton,
    cat,
    repeat,
)


def plain(node: Regex, max_states: int = 120) -> Regex:
    """A set's texts without ``Both`` and ``Other``, by elimination of the automaton's states."""
    if not node.has_algebra:
        return node
    table = automaton(node, max_states)
    alive = _alive(table)
    if node not in alive:
        return NOTHING
    end = object()
    edges: dict[object, dict[object, Regex]] = {}
    for state in alive:
        row: dict[object, Regex] = {}
        for label, target in table[state]:
            if target in alive:
                row[target] = alt(row.get(target, NOTHING), label)
        if state.nullable:
            row[end] = EMPTY_TEXT
        edges[state] = row
    begin = object()
    edges[begin] = {node: EMPTY_TEXT}
    into: dict[object, dict[object, None]] = {state: {} for state in alive}
    for source, leads_to in edges.items():
        for place in leads_to:
            if place != source and place is not end:
                into[place][source] = None
    while into:
        _eliminate(edges, into, max_states)
    return edges[begin][end]


def _eliminate(
    edges: dict[object, dict[object, Regex]],
    into: dict[object, dict[object, None]],
    max_states: int,
) -> None:
    """Lead around the state of which that makes fewest edges; ``into`` are the others' sources."""
    gone = min(into, key=lambda state: len(into[state]) * len(edges[state]))
    out = edges.pop(gone)
    loop = repeat(out.pop(gone, NOTHING), 0, None)
    sources = into.pop(gone)
    for target in out:
        if target in into:
            del into[target][gone]
    for state in sources:
        row = edges[state]
        head = cat(row.pop(gone), loop)
        for target, tail in out.items():
            row[target] = alt(row.get(target, NOTHING), cat(head, tail))
            if row[target].size > 40 * max_states:
                raise TooManyStates
            if target != state and target in into:
                into[target][state] = None


def _alive(table: dict[Regex, list[tuple[Chars, Regex]]]) -> set[Regex]:
    sources: dict[Regex, list[Regex]] = {}
    for state, row in table.items():
        for _, target in row:
            sources.setdefault(target, []).append(state)
    alive = {state for state in table if state.nullable}
    waiting = list(alive)
    while waiting:
        for state in sources.get(waiting.pop(), ()):
            if state not in alive:
                alive.add(state)
                waiting.append(state)
    return alive
