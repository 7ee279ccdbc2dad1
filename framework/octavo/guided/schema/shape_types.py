"""The few shapes that a core schema is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octavo.guided.schema.containers import State
from octavo.guided.schema.regex import Regex
from octavo.guided.schema.scalars import Numbers


@dataclass(frozen=True, slots=True)
class ValueShape:
    """One of these nulls, booleans, numbers and strings."""

    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class NumberShape:
    """A number within bounds."""

    numbers: Numbers


@dataclass(frozen=True, slots=True)
class StringShape:
    """A string of a length, in a set without ``Both`` and ``Other``."""

    low: int
    high: int | None
    pattern: Regex


@dataclass(frozen=True, slots=True)
class ArrayShape:
    """The first items one by one, then all others alike."""

    prefix: tuple[State, ...]
    rest: State
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class ObjectShape:
    """Properties by name in this order, by disjoint patterns, and all others."""

    properties: Mapping[str, State]
    required: tuple[str, ...]
    patterns: tuple[tuple[Regex, State], ...]
    rest: State
    low: int
    high: int | None


Shape = ValueShape | NumberShape | StringShape | ArrayShape | ObjectShape
