"""JSON values as JSON Schema compares them: 1 equals 1.0, and true equals neither."""

from __future__ import annotations

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


def is_kept(bound: Fraction, *, is_low: bool, is_whole: bool) -> bool:
    """Whether nothing beyond it passes where bounds are floats, and whole ones have 64 bits."""
    if is_whole and (bound <= -(2**63) if is_low else bound >= 2**63 - 1):
        return True  # it is cut off, which leaves out more
    return abs(bound) < 2**63 and (bound.denominator != 1 or float(bound) == bound)


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
