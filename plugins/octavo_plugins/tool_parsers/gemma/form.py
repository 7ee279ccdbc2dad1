"""Calls in Gemma's notation, for a guide to demand."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from octavo.tools.forms import Function, separated
from octavo_registry.structure import (
    Chain,
    JsonText,
    Literal,
    OneOf,
    RegexText,
    Repeat,
    Structure,
    TextUntil,
)

_NOTES = {"$schema", "title", "description", "examples", "default", "strict", "nullable"}
_BARE_KEY = re.compile(r"[\w.\-$]+")


class NotWritable(Exception):
    """A schema asks for something that parts of a structure can't say."""


def gemma_call(function: Function, quote: str) -> Structure:
    """Return calls of the function, with members sorted by their keys as the templates do it."""
    return Chain((Literal(f"call:{function.name}"), _value(function.parameters, quote)))


def _value(schema: Mapping[str, Any] | bool, quote: str) -> Structure:
    if schema is False:
        raise NotWritable
    parts = {} if schema is True else {key: schema[key] for key in schema if key not in _NOTES}
    kind = parts.get("type", "string" if not parts else None)
    if "enum" in parts or "const" in parts:
        _only(parts, "type", "enum", "const")
        values = parts.get("enum", [parts.get("const")])
        return OneOf(tuple(Literal(_written(value, quote)) for value in values))
    if "anyOf" in parts:
        _only(parts, "anyOf")
        return OneOf(tuple(_value(choice, quote) for choice in parts["anyOf"]))
    if isinstance(kind, list):
        return OneOf(tuple(_value({**parts, "type": one}, quote) for one in kind))
    match kind:
        case "string":
            return _string(parts, quote)
        case "integer" | "number" | "boolean" | "null":
            return JsonText(parts)
        case "array":
            return _array(parts, quote)
        case "object":
            return _object(parts, quote)
        case _:
            raise NotWritable


def _only(parts: Mapping[str, Any], *keywords: str) -> None:
    if not set(parts) <= set(keywords):
        raise NotWritable


def _string(parts: Mapping[str, Any], quote: str) -> Structure:
    _only(parts, "type", "minLength", "maxLength")
    if "minLength" not in parts and "maxLength" not in parts:
        return Chain((Literal(quote), TextUntil((quote,))))
    # Both quotes begin with "<", so that text without it has none.
    least, most = parts.get("minLength", 0), parts.get("maxLength", "")
    return Chain((Literal(quote), RegexText(f"[^<]{{{least},{most}}}"), Literal(quote)))


def _array(parts: Mapping[str, Any], quote: str) -> Structure:
    _only(parts, "type", "items", "minItems", "maxItems")
    items = _value(parts.get("items", True), quote)
    least, most = parts.get("minItems", 0), parts.get("maxItems")
    return Chain((Literal("["), Repeat(items, least, most, ","), Literal("]")))


def _object(parts: Mapping[str, Any], quote: str) -> Structure:
    _only(parts, "type", "properties", "required", "additionalProperties")
    properties, required = parts.get("properties", {}), parts.get("required", ())
    keys = sorted({*properties, *required})
    if not all(_BARE_KEY.fullmatch(key) for key in keys):
        raise NotWritable
    members = [
        (Chain((Literal(f"{key}:"), _value(properties.get(key, True), quote))), key in required)
        for key in keys
    ]
    return Chain((Literal("{"), separated(members, ","), Literal("}")))


def _written(value: Any, quote: str) -> str:
    match value:
        case str():
            return f"{quote}{value}{quote}"
        case None | bool():
            return {None: "null", True: "true", False: "false"}[value]
        case int() | float():
            return repr(value)
        case _:
            raise NotWritable
