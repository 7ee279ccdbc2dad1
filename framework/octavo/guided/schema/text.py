"""A core schema as the set of its JSON texts, for backends that know nothing but patterns.

Where a pattern cannot say what the schema does, the set is smaller, never larger: any value has a
few levels at most, control characters without a short escape are not written where others may be,
and there is one space at most behind a bracket, a comma or a colon.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from octavo.errors import UnsupportedConstraint
from octavo.guided.schema.number_text import integers, numbers
from octavo.guided.schema.regex import (
    ANY_CHAR,
    ANY_TEXT,
    EMPTY_TEXT,
    NOTHING,
    Alt,
    Cat,
    Chars,
    Regex,
    Repeat,
    TooManyStates,
    alt,
    both,
    cat,
    chars,
    other,
    repeat,
    text,
)
from octavo.guided.schema.regex_parse import PatternError, parse_pattern
from octavo.guided.schema.regex_plain import plain
from octavo.guided.schema.values import literal

LEVELS_OF_ANY = 2
"""Lists and objects inside one another, where a schema says nothing; four times the size each."""
MAX_STATES = 300
"""Most states of a string's or name's automaton that several keywords say something about."""

_SHORT = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r", 34: '"', 92: "\\"}
_DIRECT = ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x10FFFF))
_SPACE = alt(EMPTY_TEXT, text(" "))
_COMMA = cat(text(","), _SPACE)
_COLON = cat(text(":"), _SPACE)


def json_texts(core: Mapping[str, Any] | bool, levels_of_any: int = LEVELS_OF_ANY) -> Regex:
    """The texts of a core schema without recursion, ``multipleOf`` and a number of further names.

    Lists and objects in what may be any value have so many levels.
    """
    definitions = core.get("$defs", {}) if isinstance(core, Mapping) else {}
    try:
        return _Writer(definitions, levels_of_any).value(core)
    except TooManyStates:
        raise UnsupportedConstraint("json: its strings are too complex for a pattern") from None


def whole_pattern(pattern: str) -> Regex:
    """The texts that a pattern of ECMA-262 matches from end to end."""
    try:
        return plain(parse_pattern(f"^(?:{pattern})$"), MAX_STATES)
    except TooManyStates:
        raise UnsupportedConstraint("regex: the pattern is too complex") from None
    except PatternError as error:
        raise UnsupportedConstraint(f"regex: {error}") from None


def quoted(node: Regex) -> Regex:
    """Strings as JSON writes them, each in one way."""
    return cat(text('"'), _escaped(node), text('"'))


@cache
def _escaped(node: Regex) -> Regex:
    match node:
        case Chars(ranges):
            direct = [
                (max(low, first), min(high, last))
                for low, high in ranges
                for first, last in _DIRECT
                if max(low, first) <= min(high, last)
            ]
            codes = [code for low, high in ranges for code in range(low, min(high, 92) + 1)]
            short = [(ord(_SHORT[code]),) * 2 for code in codes if code in _SHORT]
            found = alt(chars(direct), cat(text("\\"), chars(short)))
            if found == NOTHING:
                return alt(*(text(json.dumps(chr(code))[1:-1]) for code in codes))
            return found
        case Cat(parts):
            return cat(*map(_escaped, parts))
        case Alt(choices):
            return alt(*map(_escaped, choices))
        case Repeat(part, low, high):
            return repeat(_escaped(part), low, high)
    raise AssertionError("only plain sets can be written")


class _Writer:
    def __init__(self, definitions: Mapping[str, Any], levels_of_any: int) -> None:
        self._definitions = definitions
        self._levels_of_any = levels_of_any
        self._known: dict[str, Regex | None] = {}
        """None: it is being written."""

    def value(self, core: Mapping[str, Any] | bool) -> Regex:
        if isinstance(core, bool):
            return _any(self._levels_of_any) if core else NOTHING
        if "$ref" in core:
            return self._definition(core["$ref"].removeprefix("#/$defs/"))
        if "anyOf" in core:
            return alt(*map(self.value, core["anyOf"]))
        if "const" in core or "enum" in core:
            return alt(*map(_scalar, core.get("enum", [core.get("const")])))
        match core["type"]:
            case "null":
                return text("null")
            case "boolean":
                return alt(text("true"), text("false"))
            case "integer":
                return integers(core)
            case "number":
                return numbers(core)
            case "string":
                return quoted(_string(core))
            case "array":
                return self._array(core)
        return self._object(core)

    def _definition(self, name: str) -> Regex:
        if name not in self._known:
            self._known[name] = None
            self._known[name] = self.value(self._definitions[name])
        found = self._known[name]
        if found is None:
            raise UnsupportedConstraint(f"json: {name} contains itself (recursion)")
        return found

    def _array(self, core: Mapping[str, Any]) -> Regex:
        first = [self.value(item) for item in core.get("prefixItems", [])]
        rest = self.value(core["items"])
        low, high = core.get("minItems", 0), core.get("maxItems")
        num = len(first) if high is None else min(len(first), high)
        further = None if high is None else high - num
        behind = repeat(cat(_COMMA, rest), max(0, low - max(num, 1)), further)
        for place in range(num - 1, 0, -1):
            behind = cat(_COMMA, first[place], behind)
            behind = behind if place < low else alt(EMPTY_TEXT, behind)
        if num:
            items = alt(cat(first[0], behind), NOTHING if low else EMPTY_TEXT)
        else:
            items = _separated(rest, low, high)
        return _bracketed("[", items, "]")

    def _object(self, core: Mapping[str, Any]) -> Regex:
        listed: Mapping[str, Any] = core.get("properties", {})
        required = set(core.get("required", []))
        named = [
            (_pair(text(name), self.value(item)), name in required)
            for name, item in listed.items()
            if item is not False
        ]
        more = self._others(core, list(listed))
        # Where their number is bound, all that are listed are required.
        low, high = max(0, core.get("minProperties", 0) - len(named)), core.get("maxProperties")
        high = None if high is None else high - len(named)
        begun = repeat(cat(_COMMA, more), low, high)
        items = _separated(more, low, high)
        for pair, needed in reversed(named):
            here = cat(pair, begun)
            items = here if needed else alt(here, items)
            behind = cat(_COMMA, pair)
            begun = cat(behind if needed else alt(EMPTY_TEXT, behind), begun)
        return _bracketed("{", items, "}")

    def _others(self, core: Mapping[str, Any], listed: list[str]) -> Regex:
        """A property that is not listed: by the patterns for names, or by none of them."""
        unlisted = other(alt(*map(text, listed)))
        patterns = {
            parse_pattern(pattern): self.value(item)
            for pattern, item in core.get("patternProperties", {}).items()
        }
        rest = both(unlisted, other(alt(*patterns)))
        choices = [(both(names, unlisted), item) for names, item in patterns.items()]
        choices.append((rest, self.value(core["additionalProperties"])))
        return alt(
            *(_pair(plain(names, MAX_STATES), item) for names, item in choices if item != NOTHING)
        )


def _bracketed(begin: str, items: Regex, end: str) -> Regex:
    return cat(text(begin), _SPACE, items, text(end))


def _separated(item: Regex, low: int, high: int | None) -> Regex:
    """So many, with commas between them."""
    if high == 0:
        return EMPTY_TEXT
    further = repeat(cat(_COMMA, item), max(0, low - 1), None if high is None else high - 1)
    return alt(cat(item, further), NOTHING if low else EMPTY_TEXT)


def _pair(name: Regex, value: Regex) -> Regex:
    return cat(quoted(name), _COLON, value)


def _scalar(value: Any) -> Regex:
    return quoted(text(value)) if isinstance(value, str) else text(literal(value))


def _string(core: Mapping[str, Any]) -> Regex:
    low, high = core.get("minLength", 0), core.get("maxLength")
    length = ANY_TEXT if not low and high is None else repeat(ANY_CHAR, low, high)
    if "pattern" not in core:
        return length
    return plain(both(parse_pattern(core["pattern"]), length), MAX_STATES)


@cache
def _any(levels: int) -> Regex:
    found = [*map(text, ("null", "true", "false")), numbers({}), quoted(ANY_TEXT)]
    if levels:
        items = _any(levels - 1)
        for begin, item, end in (("[", items, "]"), ("{", _pair(ANY_TEXT, items), "}")):
            found.append(_bracketed(begin, _separated(item, 0, None), end))
    return alt(*found)
