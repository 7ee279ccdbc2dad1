"""Structural tags: constraints that begin inside free text, in the two spellings that are in use.

The older one lists ``structures`` of begin, schema and end behind ``triggers``; the newer one is a
tree of formats.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from octavo.errors import ParameterError
from octavo.guided.schema import core_schema
from octavo.wording import shown
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

MOST_DEPTH = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedStructure:
    """``features``: those of its schemas."""

    structure: Structure
    features: frozenset[str]


def read_structural_tag(given: Any) -> CheckedStructure:
    """Read either spelling, as a dict or JSON text; or a structure whose schemas are users'."""
    if isinstance(given, Structure):
        reader = _Reader()
        structure = reader.checked(given)
        return CheckedStructure(structure=structure, features=frozenset(reader.features))
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError) as error:
            raise _refused(f"is not JSON: {error}") from error
    tag = _object(given, "the tag")
    reader = _Reader()
    if "structures" in tag:
        structure = reader.older(tag)
    elif "format" in tag:
        _only(tag, "type", "format")
        structure = reader.format(_object(tag["format"], "format"), 0)
    else:
        raise _refused("needs 'format', or 'structures' and 'triggers'")
    return CheckedStructure(structure=structure, features=frozenset(reader.features))


class _Reader:
    def __init__(self) -> None:
        self.features: set[str] = set()

    def checked(self, part: Structure) -> Structure:
        """The part with core schemas in the place of users'."""
        match part:
            case JsonText(schema):
                return self._json(schema)
            case RegexText():
                self.features.add("regex")
                return part
            case Chain(parts) | OneOf(parts) | Triggered(parts=parts):
                return replace(part, parts=tuple(map(self.checked, parts)))
            case Repeat(inner):
                return replace(part, part=self.checked(inner))
        return part

    def older(self, tag: Mapping[str, Any]) -> Structure:
        _only(tag, "type", "structures", "triggers")
        parts = []
        for each in _list(tag, "structures"):
            each = _object(each, "structures")
            _only(each, "begin", "schema", "end")
            begin, end = Literal(_text(each, "begin")), Literal(_text(each, "end"))
            parts.append(Chain((begin, self._json(each.get("schema", {})), end)))
        return self._triggered(tag, tuple(parts), _texts(tag, "triggers"))

    def format(self, tag: Mapping[str, Any], depth: int) -> Structure:
        if depth > MOST_DEPTH:
            raise _refused(f"is more than {MOST_DEPTH} formats deep")
        kind = tag.get("type")
        read: dict[Any, Callable[[Mapping[str, Any], int], Structure]] = {
            "const_string": self._const_string,
            "json_schema": self._json_schema,
            "regex": self._regex,
            "any_text": self._any_text,
            "sequence": self._sequence,
            "or": self._or,
            "tag": self._tag,
            "triggered_tags": self._triggered_tags,
        }
        if kind not in read:
            raise _refused(f"has a format of type {shown(kind)}; there is: {', '.join(read)}")
        return read[kind](tag, depth + 1)

    def _const_string(self, tag: Mapping[str, Any], depth: int) -> Structure:
        _only(tag, "type", "value")
        return Literal(_text(tag, "value"))

    def _json_schema(self, tag: Mapping[str, Any], depth: int) -> Structure:
        _only(tag, "type", "json_schema")
        return self._json(tag.get("json_schema", {}))

    def _regex(self, tag: Mapping[str, Any], depth: int) -> Structure:
        _only(tag, "type", "pattern")
        self.features.add("regex")
        return RegexText(_text(tag, "pattern"))

    def _any_text(self, tag: Mapping[str, Any], depth: int) -> Structure:
        _only(tag, "type")
        return TextUntil()

    def _sequence(self, tag: Mapping[str, Any], depth: int) -> Structure:
        _only(tag, "type", "elements")
        return Chain(self._formats(tag, "elements", depth))

    def _or(self, tag: Mapping[str, Any], depth: int) -> Structure:
        _only(tag, "type", "elements")
        return OneOf(self._formats(tag, "elements", depth))

    def _tag(self, tag: Mapping[str, Any], depth: int) -> Structure:
        _only(tag, "type", "begin", "content", "end")
        begin, end = Literal(_text(tag, "begin")), _text(tag, "end")
        content = self.format(_object(tag.get("content"), "content"), depth)
        if content == TextUntil():
            return Chain((begin, TextUntil((end,)) if end else content))
        return Chain((begin, content, Literal(end)))

    def _triggered_tags(self, tag: Mapping[str, Any], depth: int) -> Structure:
        _only(tag, "type", "triggers", "tags", "at_least_one", "stop_after_first")
        parts = tuple(self._tag(_object(each, "tags"), depth) for each in _list(tag, "tags"))
        return self._triggered(tag, parts, _texts(tag, "triggers"))

    def _triggered(
        self, tag: Mapping[str, Any], parts: tuple[Structure, ...], triggers: tuple[str, ...]
    ) -> Structure:
        for part in parts:
            begin = part.parts[0] if isinstance(part, Chain) else part
            text = begin.text if isinstance(begin, Literal) else ""
            if not any(text.startswith(trigger) for trigger in triggers):
                raise _refused(f"has a part that begins with {shown(text)}, which is no trigger")
        return Triggered(
            triggers,
            parts,
            least=1 if tag.get("at_least_one") else 0,
            most=1 if tag.get("stop_after_first") else None,
        )

    def _formats(self, tag: Mapping[str, Any], name: str, depth: int) -> tuple[Structure, ...]:
        return tuple(self.format(_object(each, name), depth) for each in _list(tag, name))

    def _json(self, schema: Any) -> Structure:
        if not isinstance(schema, (Mapping, bool)):
            raise _refused(f"has a schema {shown(schema)} that is no object")
        core = core_schema(schema)
        # What enforces structures takes fewer numbers where bounds are that large.
        self.features |= core.features - {"bounds:large"} | {"json"}
        return JsonText(core.schema)


def _only(tag: Mapping[str, Any], *names: str) -> None:
    for name in tag:
        if name not in names:
            raise _refused(f"has {shown(name)}, which is not known; there is: {', '.join(names)}")


def _object(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _refused(f"{name}={shown(value)} must be an object")
    return value


def _list(tag: Mapping[str, Any], name: str) -> list[Any]:
    value = tag.get(name)
    if not isinstance(value, list) or not value:
        raise _refused(f"{name}={shown(value)} must be a list, not empty")
    return value


def _text(tag: Mapping[str, Any], name: str) -> str:
    value = tag.get(name)
    if not isinstance(value, str):
        raise _refused(f"{name}={shown(value)} must be text")
    return value


def _texts(tag: Mapping[str, Any], name: str) -> tuple[str, ...]:
    values = tuple(_list(tag, name))
    if not all(isinstance(value, str) and value for value in values):
        raise _refused(f"{name}={shown(values)} must be texts, none of them empty")
    return values


def _refused(problem: str) -> ParameterError:
    return ParameterError(f"structural_tag {problem}", param="structural_tag")
