"""JSON values as JSON Schema compares them: 1 equals 1.0, and true equals neither."""

from __future__ import annotations

import json
from collections.abc import Hashable
from decimal import Decimal
from fractions import Fraction
from typing import Any, Literal

Kind = Literal["null", "boolean", "number", "string", "array", "object"]
KINDS: tuple[Kind, ...] = ("object", "array", "string", "number", "boolean", "null")


def kind_of(value: Any) -> Kind:
    """The value's type; integers are numbers."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def exact(number: float) -> Fraction:
    """The number that was written, not the binary one nearest to it."""
    return Fraction(number) if isinstance(number, int) else Fraction(Decimal(repr(number)))


def written(number: Fraction) -> int | float:
    """The shortest way to write a number back."""
    return number.numerator if number.denominator == 1 else float(number)


def canonical(value: Any) -> Any:
    """The value, a number as the least that equals it: -2 for -2.0, and 0 for -0.0."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return written(exact(value)) if is_number else value


def literal(value: Any) -> str:
    """The one text of a null, boolean, number or string; numbers have no exponent."""
    if isinstance(value, float):
        return f"{Decimal(repr(value)):f}"
    return json.dumps(value, ensure_ascii=False)


def is_float(number: float) -> bool:
    """Whether a binary float of 64 bits is the same number, or nearest to a decimal.

    Beyond whole numbers of 64 bits its shortest digits must be the number's, too.
    """
    try:
        near = float(number)
    except OverflowError:
        return False
    return near == number and (abs(number) < 2**63 or exact(near) == number)


def identity(value: Any) -> Hashable:
    """Equal for equal values."""
    match value:
        case bool():
            return ("boolean", value)
        case int() | float():
            return exact(value)
        case list():
            return ("array", tuple(identity(item) for item in value))
        case dict():
            return ("object", frozenset((name, identity(item)) for name, item in value.items()))
        case str() | None:
            return value
    raise TypeError(f"{type(value).__name__} is no JSON value")
