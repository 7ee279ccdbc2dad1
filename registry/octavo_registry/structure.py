"""Texts of a known structure: what a tool parser can demand and a guided backend can enforce.

A tree of parts, so that a parser names no grammar language and a backend knows no tool format.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class Literal:
    """Exactly this text."""

    text: str


@dataclass(frozen=True, slots=True)
class JsonText:
    """A JSON document that the schema admits."""

    schema: Mapping[str, Any] | bool


@dataclass(frozen=True, slots=True)
class RegexText:
    """Text that the pattern matches from end to end."""

    pattern: str


@dataclass(frozen=True, slots=True)
class TextUntil:
    """Any text up to and with the first of ``ends``; without any, up to the end of the message."""

    ends: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Chain:
    """One part after the other."""

    parts: tuple[Structure, ...]


@dataclass(frozen=True, slots=True)
class OneOf:
    """Any one of the parts."""

    parts: tuple[Structure, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """The part, so many times, with the separator between."""

    part: Structure
    least: int = 0
    most: int | None = None
    separator: str = ""


@dataclass(frozen=True, slots=True)
class Triggered:
    """Free text in which each occurrence of a trigger begins one of the parts.

    Every part begins with one of the triggers. ``least`` parts must come before the end; after
    ``most`` of them, free text without a trigger.
    """

    triggers: tuple[str, ...]
    parts: tuple[Structure, ...]
    least: int = 0
    most: int | None = None


Structure = Literal | JsonText | RegexText | TextUntil | Chain | OneOf | Repeat | Triggered
"""A part and all that it is made of."""


_PARTS = (Literal, JsonText, RegexText, TextUntil, Chain, OneOf, Repeat, Triggered)
_BY_NAME = {part.__name__: part for part in _PARTS}


def plain(structure: Structure) -> dict[str, Any]:
    """Write a structure in JSON types."""
    written: dict[str, Any] = {"kind": type(structure).__name__}
    for field in fields(structure):
        written[field.name] = _plain_value(getattr(structure, field.name))
    return written


def _plain_value(value: Any) -> Any:
    if isinstance(value, _PARTS):
        return plain(value)
    return [_plain_value(each) for each in value] if isinstance(value, tuple) else value


def from_plain(written: Mapping[str, Any]) -> Structure:
    """Read what ``plain`` wrote."""
    values = {name: value for name, value in written.items() if name != "kind"}
    if written["kind"] != JsonText.__name__:  # its schema stays as it is
        values = {name: _from_plain_value(value) for name, value in values.items()}
    structure: Structure = _BY_NAME[written["kind"]](**values)
    return structure


def _from_plain_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return from_plain(value)
    return tuple(map(_from_plain_value, value)) if isinstance(value, list) else value
