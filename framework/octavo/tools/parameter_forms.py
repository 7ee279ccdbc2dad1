"""What a guide can demand of parameters that are written as tagged text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from octavo.tools.forms import Function
from octavo.tools.parameters import mapping, referred, schema_types
from octavo_registry.structure import (
    Chain,
    JsonText,
    Literal,
    OneOf,
    RegexText,
    Structure,
    TextUntil,
)

_NOT_BY_MEMBERS = {
    *("$ref", "allOf", "anyOf", "oneOf", "not", "if"),
    *("dependentRequired", "dependentSchemas", "minProperties", "maxProperties"),
}
"""What a schema may ask of an object that its members, one by one, cannot see to."""
_DEEPEST = 8
_ANCHORED = re.compile(r"\^((?:[^|^$\\]|\\.)*)\$")


def parameters_form(
    function: Function, *, before: Callable[[str], str], end: str | Callable[[str], str], after: str
) -> Structure | None:
    """Return the parameters that a function takes, in its schema's order, optional ones or not.

    A parameter is ``before`` its value, for its name, the value, ``end``, which may depend on the
    name too, ``after``; a value has no ``end`` in it. None: the schema asks for what texts of this
    kind cannot be held to.
    """
    schema = function.parameters
    properties = mapping(schema.get("properties"))
    required = set(schema.get("required", ()))
    if schema.keys() & _NOT_BY_MEMBERS or required - properties.keys():
        return None
    parts: list[Structure] = []
    for key, value_schema in properties.items():
        value = value_form(value_schema, schema, end if isinstance(end, str) else end(key))
        if value is None:
            return None
        part = Chain((Literal(before(key)), value, Literal(after)))
        parts.append(part if key in required else OneOf((part, Literal(""))))
    return Chain(tuple(parts))


def value_form(schema: Any, root: Mapping[str, Any], end: str, depth: int = 0) -> Structure | None:
    """Return the values that a schema admits, each with ``end`` behind it; None: see above."""
    types = schema_types(schema, root)
    schema = mapping(schema)
    if types and "string" not in types:
        definitions = {key: root[key] for key in ("$defs", "definitions") if key in root}
        return Chain((JsonText({**definitions, **schema}), Literal(end)))
    if depth > _DEEPEST:
        return None
    if "$ref" in schema:
        return value_form(referred(schema["$ref"], root), root, end, depth + 1)
    for alternatives in ("anyOf", "oneOf"):
        if alternatives in schema:
            found = [value_form(each, root, end, depth + 1) for each in schema[alternatives]]
            parts = tuple(each for each in found if each is not None)
            return OneOf(parts) if len(parts) == len(found) else None
    if "enum" in schema or "const" in schema:
        choices = schema.get("enum", [schema.get("const")])
        texts = (each if isinstance(each, str) else json.dumps(each) for each in choices)
        return OneOf(tuple(Literal(text + end) for text in texts))
    return _text_form(schema, end)


def _text_form(schema: Mapping[str, Any], end: str) -> Structure | None:
    asked = schema.keys() & {"pattern", "minLength", "maxLength", "allOf", "not"}
    if not asked:
        return TextUntil((end,))
    if asked == {"pattern"} and (pattern := _ANCHORED.fullmatch(schema["pattern"])):
        return Chain((RegexText(pattern[1]), Literal(end)))
    if asked <= {"minLength", "maxLength"}:
        # Without "<" no text holds a tag.
        length = f"{schema.get('minLength', 0)},{schema.get('maxLength', '')}"
        return Chain((RegexText(f"[^<]{{{length}}}"), Literal(end)))
    return None
