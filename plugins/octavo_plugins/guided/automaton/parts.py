"""The texts of a constraint as a graph: nodes that bytes lead to, and parts that others call.

A node is built with the node behind it, so that equal nodes are one and the same. A part is named
by its first node and goes on to ``END``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from octavo.errors import UnsupportedConstraint
from octavo.guided.schema.regex import Range, other_chars
from octavo.guided.schema.utf8 import byte_ranges

MOST_NODES = 60_000
END, DONE = 0, 1
"""The node behind a part, and the one behind the whole text."""
ALL_BYTES = (1 << 256) - 1
NOT_ASCII = other_chars([(0, 0x7F)]).ranges


class Step(NamedTuple):
    """A byte out of a set, whose bits are the bytes."""

    bytes: int
    target: int


class Call(NamedTuple):
    """A part, and the node behind it."""

    part: int
    target: int


class Fork(NamedTuple):
    """Any of several nodes."""

    nodes: tuple[int, ...]


class Text(NamedTuple):
    """The rest of a JSON string: so many characters, its quotation mark, and the node behind."""

    low: int
    high: int | None
    target: int


Node = Step | Call | Fork | Text


def byte_set(data: Iterable[int]) -> int:
    """A set of bytes as bits."""
    found = 0
    for byte in data:
        found |= 1 << byte
    return found


def byte_range(low: int, high: int) -> int:
    """The bytes from one to another."""
    return (1 << high + 1) - (1 << low)


QUOTE = byte_set(b'"')
PLAIN = byte_range(0x20, 0x7E) & ~byte_set(b'"\\')
"""Characters of one byte that a JSON string holds as they are; it could hold U+007F too."""
ESCAPED = byte_set(b'nrbtf\\"')
LEADS = byte_range(0xC2, 0xF4)
TAIL_STARTS = LEADS | byte_set(b"\\")


class Graph:
    """All nodes of one constraint."""

    def __init__(self) -> None:
        self.nodes: list[Node] = [Fork(()), Fork(())]
        self._known: dict[tuple[object, ...], int] = {}
        self._runs: tuple[list[int], list[int]] = ([END], [END])
        self._characters: dict[tuple[Range, ...], int] = {}
        escape = self.literal(b"\\", self.step(ESCAPED, END))
        self.tail = self.fork(self.character(NOT_ASCII), escape)
        """A part: a character of several bytes, or an escape."""
        self.space = self._space()
        """A part: what may stand between two tokens of JSON."""

    def step(self, bytes: int, target: int) -> int:
        """A byte of a set, then the target."""
        return self._node(Step(bytes, target))

    def literal(self, data: bytes, target: int) -> int:
        """These bytes, then the target."""
        for byte in reversed(data):
            target = self._node(Step(1 << byte, target))
        return target

    def call(self, part: int, target: int) -> int:
        """A part, then the target."""
        return self._node(Call(part, target))

    def fork(self, *nodes: int) -> int:
        """Any of these."""
        unique = tuple(dict.fromkeys(nodes))
        return unique[0] if len(unique) == 1 else self._node(Fork(unique))

    def text(self, low: int, high: int | None, target: int) -> int:
        """So many characters of a JSON string, its quotation mark, then the target."""
        return self._node(Text(low, high, target))

    def place(self) -> int:
        """A node that can be led to before it is known what it is: ``fill`` says that."""
        self.nodes.append(Fork(()))
        return len(self.nodes) - 1

    def fill(self, place: int, *nodes: int) -> None:
        """Any of these."""
        self.nodes[place] = Fork(tuple(dict.fromkeys(nodes)))

    def spaced(self, node: int) -> int:
        """The node, with a space before it or none."""
        return self.fork(self.call(self.space, node), node)

    def character(self, ranges: tuple[Range, ...]) -> int:
        """A part: one of these characters in UTF-8."""
        found = self._characters.get(ranges)
        if found is None:
            runs = [run for low, high in ranges for run in byte_ranges(low, high)]
            found = self._characters[ranges] = self.fork(*map(self._bytes_of, runs))
        return found

    def opened(self, text: Text) -> tuple[int, ...]:
        """A string's rest by its next character."""
        low, high, target = text
        nodes = [] if low else [self.step(QUOTE, target)]
        if high is None or high > 0:
            rest = self.text(max(low - 1, 0), None if high is None else high - 1, target)
            nodes += [self.step(PLAIN, rest), self.call(self.tail, rest)]
        return tuple(nodes)

    def run(self, num: int, is_exact: bool) -> int:
        """A part: so many characters of a JSON string, or up to so many."""
        runs = self._runs[is_exact]
        while len(runs) <= num:
            more = (self.step(PLAIN, runs[-1]), self.call(self.tail, runs[-1]))
            runs.append(self.fork(*more) if is_exact else self.fork(END, *more))
        return runs[num]

    def _bytes_of(self, run: list[Range]) -> int:
        target = END
        for low, high in reversed(run):
            target = self.step(byte_range(low, high), target)
        return target

    def _space(self) -> int:
        """One blank, or a line break and up to 64 blanks: documents in one line, and indented."""
        blanks = END
        for _ in range(64):
            blanks = self.fork(END, self.step(byte_set(b" \t"), blanks))
        broken = self.literal(b"\n", blanks)
        return self.fork(self.literal(b" ", END), broken, self.literal(b"\r", broken))

    def _node(self, node: Node) -> int:
        key = (type(node), *node)
        found = self._known.get(key)
        if found is None:
            if len(self.nodes) >= MOST_NODES:
                raise UnsupportedConstraint("the constraint is too large for a table of states")
            found = self._known[key] = len(self.nodes)
            self.nodes.append(node)
        return found
