"""How deep a constraint is nested: the library walks it by calls, and dies where its stack ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from octavo.errors import UnsupportedConstraint
from octavo.guided.lark import Word, words

MOST_LEVELS = 1000
"""Schemas inside one another, or rules and brackets: some 1,500 end a stack of 8 MiB."""
_Node = TypeVar("_Node")
_Rule = tuple[int, str]
"""A grammar inside the grammar, by number, and a name in it; "" is what stands outside of rules."""


def check_schema(core: Any) -> None:
    """Raise where definitions lead too deep into one another."""
    _check(_levels_of_schema(core))


def check_grammar(grammar: str) -> None:
    """Raise where rules do, with the schemas in them."""
    listed = list(words(grammar))
    schemas = [_levels_of_schema(word.value) for word in listed if word.text == "%json"]
    _check(_levels_of_rules(_rules(listed)) + max(schemas, default=0))


def _check(num_levels: int) -> None:
    if num_levels > MOST_LEVELS:
        raise UnsupportedConstraint(
            f"llguidance: the constraint is nested {num_levels} levels deep; at most {MOST_LEVELS}"
        )


def _deepest(start: _Node, parts: Callable[[_Node], Iterable[tuple[int, _Node]]]) -> int:
    """Levels on the longest way down; ``parts`` gives each with the levels to it."""
    most = 0
    way = [(0, iter(parts(start)))]
    while way:
        level, rest = way[-1]
        part = next(rest, None)
        if part is None:
            way.pop()
            continue
        level += part[0]
        most = max(most, level)
        way.append((level, iter(parts(part[1]))))
    return most


def _levels_of_schema(core: Any) -> int:
    definitions = core.get("$defs", {}) if isinstance(core, Mapping) else {}
    seen: set[str] = set()

    def parts(node: Any) -> Iterator[tuple[int, Any]]:
        if isinstance(node, list):
            yield from ((0, item) for item in node)
        if not isinstance(node, Mapping):
            return
        for key, item in node.items():
            if key == "$ref" and item not in seen:
                seen.add(item)
                yield 1, definitions.get(item.removeprefix("#/$defs/"))
            elif key in ("properties", "patternProperties"):
                yield from ((1, part) for part in item.values())
            elif key in ("anyOf", "prefixItems", "items", "additionalProperties"):
                yield 1, item

    return _deepest(core, parts)


def _levels_of_rules(rules: Mapping[_Rule, list[tuple[int, _Rule]]]) -> int:
    seen: set[_Rule] = set()

    def parts(rule: _Rule) -> Iterator[tuple[int, _Rule]]:
        for levels, each in rules.get(rule, ()):
            if each not in seen:
                seen.add(each)
                yield levels, each

    return _deepest((0, ""), parts)


def _rules(listed: Iterable[Word]) -> dict[_Rule, list[tuple[int, _Rule]]]:
    """What each rule names, each with the levels of brackets around it."""
    rules: dict[_Rule, list[tuple[int, _Rule]]] = {(0, ""): [(1, (0, "start"))]}
    num_grammars, brackets = 1, 0
    rule: _Rule = (0, "")
    outer: list[tuple[_Rule, int] | None] = []
    """For each brace that is open: where a grammar inside stands, or None for a count's."""
    before = "\n"
    for word in listed:
        if word.text == "{":
            if before == "%lark":
                inside = (num_grammars, "start")
                rules.setdefault(rule, []).append((brackets + 1, inside))
                outer.append((rule, brackets))
                rule, brackets = (num_grammars, ""), 0
                num_grammars += 1
                before = "\n"
                continue
            outer.append(None)
        elif word.text == "}" and outer:
            if (around := outer.pop()) is not None:
                rule, brackets = around
        elif word.text in ("(", "["):
            brackets += 1
        elif word.text in (")", "]"):
            brackets = max(0, brackets - 1)
        elif word.kind == "name":
            name = (rule[0], word.text.lstrip("!?"))
            if before == "\n":
                rule, brackets = name, 0
            else:
                rules.setdefault(rule, []).append((brackets + 1, name))
        elif word.kind == "keyword" and before == "\n":
            rule, brackets = (rule[0], ""), 0
        before = "\n" if word.kind == "newline" else word.text
    return rules
