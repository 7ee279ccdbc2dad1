"""Sets of strings as nodes: as JSON writes them, and as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from octavo.errors import UnsupportedConstraint
from octavo.guided.schema import regex, values
from octavo.guided.schema.regex import (
    Alt,
    Both,
    Cat,
    Chars,
    Other,
    Range,
    Regex,
    Repeat,
)
from octavo.guided.schema.regex_parse import parse_pattern
from octavo_plugins.guided.automaton.parts import (
    PLAIN,
    QUOTE,
    Graph,
    byte_range,
    byte_set,
)

MOST_STATES = 500
"""States of the automaton of sets that stand together, over characters."""
MOST_COUNTED = 4000
"""States of such an automaton, once for each number of characters."""
MOST_WRITTEN = 1024
"""Sets of characters of which it is kept how they are written."""
_ASCII = byte_range(0, 0x7F)
_ESCAPES = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r", 34: '"', 92: "\\"}


class Written(NamedTuple):
    """What a set of characters is written as."""

    direct: int
    """Characters of one byte."""
    escapes: int
    """Bytes behind a backslash."""
    long: tuple[Range, ...]
    """Characters of several bytes."""


Writing = Callable[[Chars], Written]


def string(graph: Graph, core: Mapping[str, Any], target: int) -> int:
    """A JSON string of a core schema, then the target."""
    low, high = core.get("minLength", 0), core.get("maxLength")
    if "pattern" not in core:
        return graph.step(QUOTE, graph.text(low, high, target))
    found, close = parse_pattern(core["pattern"]), graph.step(QUOTE, target)
    if not low and high is None:
        return graph.step(QUOTE, _built(graph, found, close, _in_json))
    return graph.step(QUOTE, _walked(graph, found, close, _in_json, low, high))


def quoted(graph: Graph, node: Regex, target: int) -> int:
    """A JSON string out of a set, then the target."""
    return graph.step(QUOTE, _built(graph, node, graph.step(QUOTE, target), _in_json))


def plain(graph: Graph, node: Regex, target: int) -> int:
    """A text out of a set, then the target."""
    return _built(graph, node, target, _as_it_is)


def unlisted(graph: Graph, names: Iterable[str], target: int) -> int:
    """A JSON string that is none of these, then the target."""
    tree: dict[str, dict[str, Any]] = {}
    for name in names:
        branch = tree
        for char in name:
            branch = branch.setdefault(char, {})
        branch[""] = {}
    free = graph.text(0, None, target)

    def rest(branch: dict[str, dict[str, Any]]) -> int:
        here = [] if "" in branch else [graph.step(QUOTE, target)]
        codes = [(ord(char), ord(char)) for char in branch if char]
        here += _led(graph, _in_json(regex.other_chars(codes)), free)
        for char, inner in branch.items():
            if char:
                here += _led(graph, _in_json(regex.chars([(ord(char), ord(char))])), rest(inner))
        return graph.fork(*here)

    return graph.step(QUOTE, rest(tree) if tree else free)


def literal(value: object) -> bytes:
    """A value as JSON writes it."""
    return values.literal(value).encode(errors="surrogatepass")


def _built(graph: Graph, node: Regex, target: int, written: Writing) -> int:
    """A set, then the target."""
    match node:
        case Chars():
            return graph.fork(*_led(graph, written(node), target))
        case Cat(parts):
            for part in reversed(parts):
                target = _built(graph, part, target, written)
            return target
        case Alt(choices):
            return graph.fork(*(_built(graph, choice, target, written) for choice in choices))
        case Repeat(part, low, high):
            place = target
            if high is None:
                place = graph.place()
                graph.fill(place, target, _built(graph, part, place, written))
            for num_before in reversed(range(low if high is None else high)):
                place = _built(graph, part, place, written)
                place = place if num_before < low else graph.fork(target, place)
            return place
        case Both() | Other():
            return _walked(graph, node, target, written)


def _walked(
    graph: Graph,
    node: Regex,
    target: int,
    written: Writing,
    low: int = 0,
    high: int | None = None,
) -> int:
    """Build a set's texts of so many characters by its automaton over characters."""
    table = regex.automaton(node, MOST_STATES)
    most = low if high is None else high
    if len(table) * (most + 1) > max(MOST_COUNTED, len(table)):
        raise UnsupportedConstraint("the pattern with its length has too many states for a table")
    led = {
        state: [(written(label), behind) for label, behind in steps]
        for state, steps in table.items()
    }
    places = {(node, 0): graph.place()}
    waiting = [(node, 0)]
    while waiting:
        state, num = waiting.pop()
        nodes = [target] if state.nullable and num >= low else []
        if high is None or num < high:
            for label, behind in led[state]:
                after = behind, min(num + 1, most)
                if after not in places:
                    places[after] = graph.place()
                    waiting.append(after)
                nodes += _led(graph, label, places[after])
        graph.fill(places[state, num], *nodes)
    return places[node, 0]


def _led(graph: Graph, written: Written, target: int) -> list[int]:
    """A character out of a set, then the target."""
    nodes = []
    if written.direct:
        nodes.append(graph.step(written.direct, target))
    if written.escapes:
        nodes.append(graph.literal(b"\\", graph.step(written.escapes, target)))
    if written.long:
        nodes.append(graph.call(graph.character(written.long), target))
    return nodes


@lru_cache(MOST_WRITTEN)
def _in_json(label: Chars) -> Written:
    """Control characters have short escapes or none."""
    ascii_ = _ascii(label)
    escapes = byte_set(ord(letter) for code, letter in _ESCAPES.items() if ascii_ >> code & 1)
    return Written(ascii_ & PLAIN, escapes, _long(label))


@lru_cache(MOST_WRITTEN)
def _as_it_is(label: Chars) -> Written:
    return Written(_ascii(label), 0, _long(label))


def _ascii(label: Chars) -> int:
    found = 0
    for low, high in label.ranges:
        found |= byte_range(low, high) if low < 0x80 else 0
    return found & _ASCII


def _long(label: Chars) -> tuple[Range, ...]:
    return tuple((max(low, 0x80), high) for low, high in label.ranges if high >= 0x80)
