"""Random texts of a structure, and random values of a JSON schema."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from octavo_registry.structure import (
    Chain,
    JsonText,
    Literal,
    OneOf,
    RegexText,
    Repeat,
    Structure,
    TextUntil,
    Triggered,
)

FRAGMENTS = (
    *("plain words", "ünïcode 文字 🙂", " ", "\n", "\t", '"', "'", "\\", "\\n", "\\u00e9", "\\\\"),
    *("{", "}", "[", "]", '{"name": "x"}', ":", ",", "=", "(", ")", "<", ">", "</", "<b>", "&amp;"),
    *("1", "-2.5e3", "true", "null", "None", "|", "`", "```", "#", "%", ";", "/"),
)
"""What texts are put together from: all that means something to some format."""


def random_text(structure: Structure, chance: random.Random) -> str:
    """Return a text of the structure; what may be repeated comes at most three times more."""
    match structure:
        case Literal(text):
            return text
        case JsonText(schema):
            return json.dumps(
                random_value(schema, chance),
                ensure_ascii=chance.random() < 0.3,
                indent=chance.choice([None, 2]),
                separators=chance.choice([None, (",", ":")]),
            )
        case RegexText(pattern):
            return _matching(import_module("re._parser").parse(pattern), chance)
        case TextUntil(ends):
            end = chance.choice(ends) if ends else ""
            return _clear_of(ends, _free_text(chance, without=ends), end) + end
        case Chain(parts):
            return "".join(random_text(part, chance) for part in parts)
        case OneOf(parts):
            return random_text(chance.choice(parts), chance)
        case Repeat(part, least, most, separator):
            return separator.join(
                random_text(part, chance) for _ in range(_count(chance, least, most))
            )
        case Triggered(triggers, parts, least, most):
            text = _free_text(chance, without=triggers)
            for _ in range(_count(chance, least, most)):
                triggered = random_text(chance.choice(parts), chance)
                text = _clear_of(triggers, text, triggered) + triggered
                text += _free_text(chance, without=triggers)
            return text


def random_value(schema: Mapping[str, Any] | bool, chance: random.Random) -> Any:
    """Return a value that the schema admits; of its keywords those in `admits` are known."""
    if isinstance(schema, bool):
        return random_value({}, chance)
    if "enum" in schema:
        return chance.choice(schema["enum"])
    kinds = schema.get("type", list(_MAKERS))
    kind = chance.choice(kinds) if isinstance(kinds, list) else kinds
    return _MAKERS[kind](schema, chance)


def admits(schema: Mapping[str, Any] | bool, value: Any) -> bool:
    """Whether the schema admits the value: enum, type, items, properties, required and
    additionalProperties are looked at.
    """
    if isinstance(schema, bool):
        return schema
    if "enum" in schema and value not in schema["enum"]:
        return False
    kinds = schema.get("type", list(_TYPES))
    names = kinds if isinstance(kinds, list) else [kinds]
    if not any(isinstance(value, _TYPES[name]) for name in names) or (
        isinstance(value, bool) and not {"boolean"} & set(names)
    ):
        return False
    if isinstance(value, list):
        return all(admits(schema.get("items", True), item) for item in value)
    if not isinstance(value, dict):
        return True
    known, further = schema.get("properties", {}), schema.get("additionalProperties", True)
    return set(schema.get("required", ())) <= set(value) and all(
        admits(known.get(key, further), item) for key, item in value.items()
    )


def _object(schema: Mapping[str, Any], chance: random.Random) -> dict[str, Any]:
    required = schema.get("required", ())
    return {
        key: random_value(value, chance)
        for key, value in schema.get("properties", {}).items()
        if key in required or chance.random() < 0.5
    }


def _array(schema: Mapping[str, Any], chance: random.Random) -> list[Any]:
    items = schema.get("items", {"type": "integer"})
    return [random_value(items, chance) for _ in range(chance.randrange(4))]


_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
    "array": list,
    "object": dict,
}
_MAKERS: dict[str, Any] = {
    "string": lambda schema, chance: _free_text(chance),
    "integer": lambda schema, chance: chance.randrange(-999, 10**6),
    "number": lambda schema, chance: chance.choice([0, -7, 2.5, 1e-7, 12345.678]),
    "boolean": lambda schema, chance: chance.random() < 0.5,
    "null": lambda schema, chance: None,
    "array": _array,
    "object": _object,
}


def _free_text(chance: random.Random, *, without: Sequence[str] = ()) -> str:
    pieces: list[str] = []
    for piece in chance.choices(FRAGMENTS, k=chance.randrange(7)):
        # A tag may also come about where two pieces meet.
        if not any(tag in "".join([*pieces, piece]) for tag in without):
            pieces.append(piece)
    return "".join(pieces)


def _clear_of(tags: Sequence[str], text: str, behind: str) -> str:
    """The text without the end that would begin a tag with what follows, as ")" before ")))"."""
    size = max(map(len, tags), default=1) - 1
    while size and text:
        end = text[-size:]
        if not any(0 <= (end + behind).find(tag) < len(end) for tag in tags):
            break
        text = text[:-1]
    return text


def _count(chance: random.Random, least: int, most: int | None) -> int:
    return chance.randint(least, least + 3 if most is None else min(most, least + 3))


def _matching(pattern: Any, chance: random.Random) -> str:
    """Return a text that a pattern, as the re module parses it, matches."""
    return "".join(_matching_item(str(name), given, chance) for name, given in pattern)


def _matching_item(name: str, given: Any, chance: random.Random) -> str:
    match name:
        case "LITERAL":
            return chr(given)
        case "NOT_LITERAL":
            return chance.choice([c for c in "aé 1-" if ord(c) != given])
        case "ANY":
            return chance.choice("aé 1-")
        case "IN":
            return _in_class(given, chance)
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            least, most, part = given
            count = chance.randint(int(least), min(int(most), int(least) + 3))
            return "".join(_matching(part, chance) for _ in range(count))
        case "SUBPATTERN":
            return _matching(given[-1], chance)
        case "BRANCH":
            return _matching(chance.choice(given[1]), chance)
        case "AT":
            return ""
        case _:
            raise NotImplementedError(f"a text for {name} of a pattern")


_CLASSES = {"CATEGORY_DIGIT": "07", "CATEGORY_WORD": "aé_1", "CATEGORY_SPACE": " \n"}


def _in_class(members: Any, chance: random.Random) -> str:
    if str(members[0][0]) == "NEGATE":
        excluded = "".join(_members(given, str(name)) for name, given in members[1:])
        return chance.choice([c for c in "aZ09é文 _-,.;:!?" if c not in excluded])
    name, given = chance.choice(members)
    return chance.choice(_members(given, str(name)))


def _members(given: Any, name: str) -> str:
    match name:
        case "LITERAL":
            return chr(given)
        case "RANGE":
            return "".join(map(chr, range(given[0], given[1] + 1)))
        case _:
            return _CLASSES[str(given)]
