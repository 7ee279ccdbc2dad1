"""Arguments written as tagged text, a parameter each, made JSON text as they come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.tools.forms import functions
from octavo.tools.json_text import encoded
from octavo.tools.loose_values import json_text
from octavo.tools.reader import Reader, Reading, Sink
from octavo_registry import ToolDefinition

STRING = frozenset({"string"})
OPTIONAL = frozenset({"string", "null"})
NULLS = ("null", "none")
_ALIASES = {
    "str": "string",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "list": "array",
    "dict": "object",
}
_TYPE_NAMES = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
    type(None): "null",
}


class ToolTypes:
    """What the tools of a request say of the types of their parameters."""

    def __init__(self, tools: Sequence[ToolDefinition] | None) -> None:
        self._schemas = {function.name: function.parameters for function in functions(tools)}
        self._properties = {
            name: mapping(schema.get("properties")) for name, schema in self._schemas.items()
        }
        self._types: dict[tuple[str, str], frozenset[str]] = {}

    def of(self, name: str, key: str) -> frozenset[str]:
        """Return the JSON types that a parameter may have; none: nothing is said of it."""
        if key not in self._properties.get(name, ()):
            return frozenset()
        if (name, key) not in self._types:
            self._types[name, key] = parameter_types(self._schemas[name], key)
        return self._types[name, key]

    def keys(self, name: str) -> frozenset[str]:
        """Return the parameters that a tool declares."""
        return frozenset(self._properties.get(name, ()))


def parameter_types(parameters: Mapping[str, Any], key: str) -> frozenset[str]:
    """Return the JSON types that one of a function's parameters may have; none: any type."""
    properties = mapping(parameters.get("properties"))
    return schema_types(properties[key], parameters) if key in properties else frozenset()


def schema_types(schema: Any, root: Mapping[str, Any]) -> frozenset[str]:
    """Return the JSON types that a schema names in any of its alternatives; none: any type."""
    found: set[str] = set()
    seen: set[str] = set()
    waiting = [schema]
    while waiting:
        current = mapping(waiting.pop())
        if "type" in current:
            kinds = current["type"]
            kinds = [kinds] if isinstance(kinds, str) else _list(kinds)
            found.update(_ALIASES.get(kind, kind) for kind in kinds)
        else:
            values = [current["const"]] if "const" in current else _list(current.get("enum"))
            found.update(_TYPE_NAMES[type(value)] for value in values)
        for alternatives in ("anyOf", "oneOf", "allOf"):
            waiting += _list(current.get(alternatives))
        reference = current.get("$ref")
        if isinstance(reference, str) and reference not in seen:
            seen.add(reference)
            waiting.append(referred(reference, root))
    return frozenset(found)


def referred(reference: str, root: Mapping[str, Any]) -> Any:
    """Return the schema at ``#/$defs/name``; one that is not there says nothing."""
    found: Any = root
    for part in reference.removeprefix("#").split("/")[1:]:
        found = mapping(found).get(part.replace("~1", "/").replace("~0", "~"))
    return found


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def mapping(value: Any) -> Mapping[str, Any]:
    """Return a schema's mapping; what is none says nothing."""
    return value if isinstance(value, Mapping) else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueEnd:
    """Where values end, which have no escapes."""

    tag: str
    """The tag that closes a value."""
    follows: tuple[str, ...]
    """What may stand behind it, after white space; a closing tag before anything else is text."""
    unclosed: tuple[str, ...] = ()
    """What ends a value that lacks its closing tag; white space around it is not the value's."""
    on_own_line: bool = False
    """Whether a line break before the closing tag belongs to the markup."""

    @property
    def closing(self) -> tuple[str, ...]:
        """The closing tag, also with the line break that belongs to it."""
        return (f"\n{self.tag}", self.tag) if self.on_own_line else (self.tag,)


class ArgumentsWriter:
    """Writes one call's arguments: an object to which each parameter adds a member."""

    def __init__(self, reader: Reader, end: ValueEnd) -> None:
        self._reader = reader
        self.end = end
        """Where the next value ends."""
        self._begun = False

    @property
    def is_empty(self) -> bool:
        """Whether no member was begun."""
        return not self._begun

    def key(self, key: str) -> None:
        """Begin a member."""
        self._reader.arguments(f'{", " if self._begun else "{"}"{encoded(key)}": ')
        self._begun = True

    def value(self, types: frozenset[str]) -> Reading[str | None]:
        """Read a member's value and what follows it, which is returned; None: the text ends.

        ``types`` are those that it may have; none: what it looks like.
        """
        if types == OPTIONAL and (yield from self._reader.peek(4)).lower() not in NULLS:
            types = STRING
        if types == STRING:
            self._reader.arguments('"')
            ended, follows = yield from self._text(self._string_part)
            if ended:
                self._reader.arguments('"')
            return follows
        text, ended, follows = yield from self.text()
        self.write(text, ended, types)
        return follows

    def text(self) -> Reading[tuple[str, bool, str | None]]:
        """Read a value's text without writing it; return also whether it ended, and what follows.

        With ``write`` it becomes the value of the member that was begun.
        """
        parts: list[str] = []
        ended, follows = yield from self._text(parts.append)
        return "".join(parts), ended, follows

    def write(self, text: str, ended: bool, types: frozenset[str]) -> None:
        """Write a value that was read."""
        if ended:
            text = json_text(text, types)
        elif not types or "string" in types:
            text = f'"{encoded(text)}'
        self._reader.arguments(text)

    def write_all(self, json_object: str) -> None:
        """Write all members at once."""
        self._reader.arguments(json_object.rstrip().removesuffix("}"))
        self._begun = True

    def close(self) -> None:
        """End the object."""
        self._reader.arguments("}" if self._begun else "{}")

    def _string_part(self, text: str) -> None:
        self._reader.arguments(encoded(text))

    def _text(self, to: Sink) -> Reading[tuple[bool, str | None]]:
        """Pass on a value's text; return whether it ended, and what follows it."""
        end = self.end
        line_break = "\n" if end.on_own_line else ""
        found = yield from self._reader.text_until(*end.closing, *end.unclosed, to=to)
        while found in end.closing:
            spaces = yield from self._reader.take_while(r"\s")
            follows = yield from self._reader.literal(*end.follows, end.tag)
            if follows != end.tag and (follows or (yield from self._is_last(end.follows))):
                return True, follows
            # That tag was text: the value goes on, up to the tag behind it at least.
            to(found)
            if follows:
                kept = spaces.removesuffix(line_break)
                to(kept)
                found = spaces[len(kept) :] + follows
            else:
                to(spaces)
                found = yield from self._reader.text_until(*end.closing, *end.unclosed, to=to)
        return found is not None, found and found.strip()

    def _is_last(self, tags: Sequence[str]) -> Reading[bool]:
        """Return whether nothing is left, or the beginning of a tag that the text's end cuts."""
        rest = yield from self._reader.peek(max(map(len, tags)))
        return any(tag.startswith(rest) for tag in tags)
