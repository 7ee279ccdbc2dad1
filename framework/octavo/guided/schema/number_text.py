"""Numbers between bounds as sets of their decimal texts."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from octavo.guided.schema.regex import (
    EMPTY_TEXT,
    NOTHING,
    Regex,
    alt,
    both,
    cat,
    chars,
    plain,
    repeat,
    text,
)


def _digit(low: int, high: int) -> Regex:
    return chars([(48 + low, 48 + high)]) if low <= high else NOTHING


_DIGIT = _digit(0, 9)
_DIGITS = repeat(_DIGIT, 0, None)
_ZEROS = repeat(_digit(0, 0), 0, None)
_MORE_THAN_ZEROS = cat(_ZEROS, _digit(1, 9), _DIGITS)
_WHOLE = alt(text("0"), cat(_digit(1, 9), _DIGITS))
_MINUS, _POINT = text("-"), text(".")
_FRACTION = alt(EMPTY_TEXT, cat(_POINT, _DIGIT, _DIGITS))
_EXPONENT = cat(alt(text("e"), text("E")), alt(EMPTY_TEXT, text("+"), _MINUS), _DIGIT, _DIGITS)

_Bound = tuple[Decimal, bool]
"""With whether the bound itself is left out."""


def integers(core: Mapping[str, Any]) -> Regex:
    """Whole numbers from ``minimum`` to ``maximum``; zero has no sign."""
    low, high = core.get("minimum"), core.get("maximum")
    above = _whole(max(0, low or 0), high)
    below = _whole(max(1, 1 if high is None else -high), None if low is None else -low)
    return alt(above, cat(_MINUS, below))


def numbers(core: Mapping[str, Any]) -> Regex:
    """Numbers within bounds; between bounds none is written with an exponent."""
    low = _bound(core, "minimum", "exclusiveMinimum")
    high = _bound(core, "maximum", "exclusiveMaximum")
    if low is None and high is None:
        return cat(alt(EMPTY_TEXT, _MINUS), _WHOLE, _FRACTION, alt(EMPTY_TEXT, _EXPONENT))
    above = _between(low, high)
    if low is not None and low[0] >= 0:  # zero needs no sign
        return above
    return alt(above, cat(_MINUS, _between(_negated(high), _negated(low))))


def _bound(core: Mapping[str, Any], closed: str, open_: str) -> _Bound | None:
    for name in (closed, open_):
        if name in core:
            return Decimal(repr(core[name])), name == open_
    return None


def _negated(bound: _Bound | None) -> _Bound | None:
    return None if bound is None else (-bound[0], bound[1])


def _between(low: _Bound | None, high: _Bound | None) -> Regex:
    """Those without a sign."""
    return plain(both(_at_least(low), _at_most(high)), 1000)


def _at_least(bound: _Bound | None) -> Regex:
    if bound is None or bound[0] < 0:
        return cat(_WHOLE, _FRACTION)
    whole, digits = _parts(bound[0])
    rest = _MORE_THAN_ZEROS if bound[1] else _DIGITS
    for digit in reversed(digits):
        rest = alt(cat(_digit(int(digit) + 1, 9), _DIGITS), cat(text(digit), rest))
    fraction = _FRACTION if not digits and not bound[1] else cat(_POINT, rest)
    return alt(cat(_whole(whole + 1, None), _FRACTION), cat(text(str(whole)), fraction))


def _at_most(bound: _Bound | None) -> Regex:
    if bound is None:
        return cat(_WHOLE, _FRACTION)
    if bound[0] < 0:
        return NOTHING
    whole, digits = _parts(bound[0])
    rest = NOTHING if bound[1] else _ZEROS
    for digit in reversed(digits):
        ended = EMPTY_TEXT  # what ends before the bound's digits do is less
        rest = alt(ended, cat(_digit(0, int(digit) - 1), _DIGITS), cat(text(digit), rest))
    none = NOTHING if not digits and bound[1] else EMPTY_TEXT
    fraction = alt(none, cat(_POINT, both(rest, cat(_DIGIT, _DIGITS))))
    return alt(cat(_whole(0, whole - 1), _FRACTION), cat(text(str(whole)), fraction))


def _parts(number: Decimal) -> tuple[int, str]:
    """Its whole part, and the digits behind the point without zeros at the end."""
    whole, _, digits = f"{number:f}".partition(".")
    return int(whole), digits.rstrip("0")


def _whole(low: int, high: int | None) -> Regex:
    """Whole numbers without a sign, by the number of their digits."""
    if high is not None and high < low:
        return NOTHING
    first = len(str(low))
    last = first if high is None else len(str(high))
    found = [
        _same_length(
            str(max(low, 10 ** (num - 1) if num > 1 else 0)),
            "9" * num if high is None else str(min(high, 10**num - 1)),
        )
        for num in range(first, last + 1)
    ]
    if high is None:
        found.append(cat(_digit(1, 9), repeat(_DIGIT, first, None)))
    return alt(*found)


def _same_length(low: str, high: str) -> Regex:
    num = len(low) - 1
    if not low.strip("0") and not high.strip("9"):  # else each of the two below would ask twice
        return repeat(_DIGIT, num + 1, num + 1)
    if low[0] == high[0]:
        return cat(text(low[0]), _same_length(low[1:], high[1:]))
    return alt(
        cat(text(low[0]), _same_length(low[1:], "9" * num)),
        cat(_digit(int(low[0]) + 1, int(high[0]) - 1), repeat(_DIGIT, num, num)),
        cat(text(high[0]), _same_length("0" * num, high[1:])),
    )
