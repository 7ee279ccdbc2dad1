"""Reads GBNF, the grammar notation of ``name ::= ...``, and writes it as Lark.

GBNF speaks of characters; Lark of terminals, each as long as can be. So only what cannot be cut in
another way becomes a terminal of several characters; the rest is written character by character,
or, since that is slow, all of a grammar without recursion as one terminal.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field

from octavo.errors import ParameterError
from octavo.guided.gbnf_terminals import (
    CharsNode,
    ChoiceNode,
    LoopNode,
    NameNode,
    Node,
    SequenceNode,
    TextNode,
    split_terminals,
)
from octavo.wording import shown

MOST_DEPTH = 64
"""Deepest nesting of parentheses."""
MOST_PATTERN_CHARS = 2**16
_LAST_CHARACTER = 0x10FFFF
_TOKEN = re.compile(
    r"""(?:\s|\#[^\n]*)*(?:
      (?P<rule>[A-Za-z][\w-]*)(?:\s|\#[^\n]*)*::=
    | (?P<name>[A-Za-z][\w-]*)
    | "(?P<text>(?:\\.|[^"\\])*)"
    | \[(?P<chars>(?:\\.|[^]\\])*)\]
    | \{\s*(?P<least>\d+)\s*(?P<comma>,?)\s*(?P<most>\d*)\s*\}
    | (?P<sign>[().|*+?])
    | (?P<end>\Z)
    )""",
    re.VERBOSE | re.DOTALL,
)
_CHARACTER = re.compile(
    r"\\x([0-9A-Fa-f]{2})|\\u([0-9A-Fa-f]{4})|\\U([0-9A-Fa-f]{8})|\\(.)|(.)", re.DOTALL
)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"} | {each: each for each in '\\"[]-^'}


def is_gbnf(grammar: str) -> bool:
    """Whether a rule begins as rules of GBNF do."""
    return re.search(r"^\s*[A-Za-z][\w-]*\s*::=", grammar, re.MULTILINE) is not None


def lark_of_gbnf(grammar: str) -> str:
    """A GBNF grammar's language as Lark; begins with the rule ``root``."""
    rules = _Reader(grammar).rules()
    split = split_terminals(rules, "root")
    if split:
        with suppress(_NoPatternError):
            return f"start: /{_Patterns(rules).of(NameNode('root'))}/"
    names = {name: f"r{number}" for number, name in enumerate(rules)} | {"root": "start"}
    lines = [f"{names[name]}: {_written(rule, names, split)}" for name, rule in rules.items()]
    return "\n".join(lines)


@dataclass(slots=True)
class _Reader:
    grammar: str
    place: int = 0
    depth: int = 0

    def rules(self) -> dict[str, Node]:
        found: dict[str, Node] = {}
        used: set[str] = set()
        token = self._next()
        while token["end"] is None:
            name = token["rule"]
            if name is None:
                raise self._refused(token, "a rule, NAME ::=, is expected")
            if name in found:
                raise self._refused(token, f"rule {name!r} is there already")
            found[name] = self._choice(used)
            token = self._next()
        missing = sorted({"root", *used} - found.keys())
        if missing:
            raise _error(f"has no rule {shown(missing[0])}")
        return found

    def _choice(self, used: set[str]) -> Node:
        """Alternatives, up to a parenthesis, a rule or the end, which is left to be read."""
        parts: list[list[Node]] = [[]]
        while True:
            before, token = self.place, self._next()
            if token["rule"] is not None or token["end"] is not None or token["sign"] == ")":
                self.place = before
                return (
                    ChoiceNode(tuple(map(_sequence, parts))) if parts[1:] else _sequence(parts[0])
                )
            if token["sign"] == "|":
                parts.append([])
            elif token["least"] is not None or token["sign"] in ("*", "+", "?"):
                if not parts[-1]:
                    raise self._refused(token, "nothing is repeated")
                parts[-1].append(self._loop(parts[-1].pop(), token))
            else:
                parts[-1].append(self._item(token, used))

    def _item(self, token: re.Match[str], used: set[str]) -> Node:
        if token["name"] is not None:
            used.add(token["name"])
            return NameNode(token["name"])
        if token["text"] is not None:
            return TextNode("".join(each for each, _ in self._characters(token, "text")))
        if token["chars"] is not None:
            return self._class(token)
        if token["sign"] == ".":
            return CharsNode(((0, _LAST_CHARACTER),))
        self.depth += 1
        if self.depth > MOST_DEPTH:
            raise self._refused(token, f"more than {MOST_DEPTH} parentheses are open")
        inner = self._choice(used)
        if self._next()["sign"] != ")":
            raise self._refused(token, "a parenthesis is not closed")
        self.depth -= 1
        return inner

    def _loop(self, item: Node, token: re.Match[str]) -> Node:
        if token["sign"] is not None:
            least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}[token["sign"]]
        else:
            least = int(token["least"])
            most = int(token["most"]) if token["most"] else None if token["comma"] else least
        if most is not None and most < least:
            raise self._refused(token, f"at least {least} and at most {most} times")
        return LoopNode(item, least, most)

    def _class(self, token: re.Match[str]) -> CharsNode:
        inside = token["chars"]
        negated = inside.startswith("^")
        characters = self._characters(token, "chars")[negated:]
        ranges, place = [], 0
        while place < len(characters):
            first = last = characters[place][0]
            if characters[place + 1 : place + 2] == [("-", False)] and place + 2 < len(characters):
                last = characters[place + 2][0]
                place += 2
            if last < first:
                raise self._refused(token, f"{first}-{last} is in the wrong order")
            ranges.append((ord(first), ord(last)))
            place += 1
        merged: list[tuple[int, int]] = []
        for low, high in sorted(ranges):
            if merged and low <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
            else:
                merged.append((low, high))
        if negated:
            edges = [-1, *(edge for each in merged for edge in each), _LAST_CHARACTER + 1]
            gaps = zip(edges[::2], edges[1::2], strict=True)
            merged = [(low + 1, high - 1) for low, high in gaps if low + 1 < high]
        if not merged:
            raise self._refused(token, "no character is in the class")
        return CharsNode(tuple(merged))

    def _characters(self, token: re.Match[str], group: str) -> list[tuple[str, bool]]:
        """Each with whether it was escaped."""
        found = []
        for each in _CHARACTER.finditer(token[group]):
            code = each[1] or each[2] or each[3]
            if code is not None and int(code, 16) <= _LAST_CHARACTER:
                found.append((chr(int(code, 16)), True))
            elif each[4] in _ESCAPES:
                found.append((_ESCAPES[each[4]], True))
            elif each[5] is not None:
                found.append((each[5], False))
            else:
                raise self._refused(token, f"escape {each[0]} is not known")
        return found

    def _next(self) -> re.Match[str]:
        token = _TOKEN.match(self.grammar, self.place)
        if token is None:
            rest = self.grammar[self.place :].lstrip()
            line = self.grammar.count("\n", 0, len(self.grammar) - len(rest)) + 1
            raise _error(f"line {line}: {shown(rest[:40])} cannot be read")
        self.place = token.end()
        return token

    def _refused(self, token: re.Match[str], problem: str) -> ParameterError:
        line = self.grammar.count("\n", 0, token.end()) + 1
        return _error(f"line {line}: {problem}")


def _sequence(parts: list[Node]) -> Node:
    return parts[0] if len(parts) == 1 else SequenceNode(tuple(parts))


def _written(node: Node, names: dict[str, str], split: frozenset[Node]) -> str:
    match node:
        case NameNode(name):
            return names[name]
        case TextNode(text):
            if node in split:
                return " ".join(_class(((ord(each), ord(each)),)) for each in text)
            body = "".join(_class_character(ord(each)) for each in text)
            return f"/{body}/" if text else '""'
        case CharsNode(ranges, is_run):
            single = _class(ranges)
            return f"{single}+" if is_run and node in split else _class(ranges, "+" * is_run)
        case SequenceNode(parts):
            return " ".join(_written(each, names, split) for each in parts) or '""'
        case ChoiceNode(parts):
            return f"({' | '.join(_written(each, names, split) for each in parts)})"
        case LoopNode(part, least, most):
            written = f"({_written(part, names, split)}){_count(least, most)}"
            return written if most != 0 else '""'


class _NoPatternError(Exception):
    """A rule leads back to itself, or its pattern is too long."""


@dataclass(frozen=True, slots=True)
class _Patterns:
    """Rules as regular expressions."""

    rules: dict[str, Node]
    known: dict[str, str] = field(default_factory=dict)
    inside: list[str] = field(default_factory=list)

    def of(self, node: Node) -> str:
        match node:
            case NameNode(name):
                return self._of_rule(name)
            case TextNode() | CharsNode():
                return _written(node, {}, frozenset()).strip("/") if node != TextNode("") else ""
            case SequenceNode(parts):
                return "".join(map(self.of, parts))
            case ChoiceNode(parts):
                return f"(?:{'|'.join(map(self.of, parts))})"
            case LoopNode(part, least, most):
                return f"(?:{self.of(part)}){_count(least, most)}"

    def _of_rule(self, name: str) -> str:
        if name not in self.known:
            if name in self.inside or len(self.inside) == MOST_DEPTH:
                raise _NoPatternError
            self.inside.append(name)
            self.known[name] = self.of(self.rules[name])
            self.inside.pop()
            if len(self.known[name]) > MOST_PATTERN_CHARS:
                raise _NoPatternError
        return self.known[name]


def _count(least: int, most: int | None) -> str:
    short = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((least, most))
    return short or f"{{{least},{'' if most is None else most}}}"


def _class(ranges: tuple[tuple[int, int], ...], count: str = "") -> str:
    body = "".join(
        _class_character(low) + (f"-{_class_character(high)}" if high > low else "")
        for low, high in ranges
    )
    return f"/[{body}]{count}/"


def _class_character(code: int) -> str:
    character = chr(code)
    return character if character.isascii() and character.isalnum() else f"\\x{{{code:X}}}"


def _error(problem: str) -> ParameterError:
    return ParameterError(f"grammar {problem}", param="grammar")
