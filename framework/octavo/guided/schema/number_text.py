"""Numbers between bounds as sets of their decimal texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from octavo.guided.schema.regex import (
    EMPTY_TEXT,
    NOTHING,
    Regex,
    alt,
    cat,
    chars,
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
    """Texts of the numbers in a range that have no sign."""
    if high is not None and high[0] < 0:
        return NOTHING
    if low is None or low[0] < 0:
        low = (Decimal(0), False)
    if high is not None and (high[0] < low[0] or (high[0] == low[0] and (low[1] or high[1]))):
        return NOTHING
    first, least = _parts(low[0])
    above = cat(text(str(first)), _fraction(least, low[1], None, False))
    if high is None:
        return alt(above, cat(_whole(first + 1, None), _FRACTION))
    last, most = _parts(high[0])
    if first == last:
        return cat(text(str(first)), _fraction(least, low[1], most, high[1]))
    below = cat(text(str(last)), _fraction("", False, most, high[1]))
    return alt(above, cat(_whole(first + 1, last - 1), _FRACTION), below)


def _fraction(low: str, low_open: bool, high: str | None, high_open: bool) -> Regex:
    """Point and digits, between the digits of two bounds of one whole part."""
    is_whole_one = not low and not low_open and (high != "" or not high_open)
    digits = _digits_between(low, low_open, high, high_open)
    return alt(EMPTY_TEXT if is_whole_one else NOTHING, cat(_POINT, digits))


def _digits_between(low: str, low_open: bool, high: str | None, high_open: bool) -> Regex:
    """One digit at least. Digits are told apart at the first place where they differ."""
    if high is None:
        return _digits_from(low, low_open)
    same = next((num for num in range(len(high)) if low[num : num + 1] != high[num]), len(high))
    if same == len(high):  # so that both bounds are the same
        if low_open or high_open:
            return NOTHING
        return cat(text(high or "0"), _ZEROS)
    if same < len(low):
        shared, low, high = high[:same], low[same:], high[same:]
        return cat(
            text(shared),
            alt(
                cat(text(low[0]), _digits_from(low[1:], low_open, can_end=True)),
                cat(_digit(int(low[0]) + 1, int(high[0]) - 1), _DIGITS),
                cat(text(high[0]), _digits_up_to(high[1:], high_open)),
            ),
        )
    # The lower bound goes on with zeros, as far as one likes.
    shared, high = high[:same], high[same:]
    num_zeros = len(high) - len(high.lstrip("0"))
    zeros, digit, rest = high[:num_zeros], high[num_zeros], high[num_zeros + 1 :]
    behind = _MORE_THAN_ZEROS if low_open else _DIGITS
    found = alt(
        cat(text(zeros + "0"), behind),
        cat(text(zeros), _digit(1, int(digit) - 1), _DIGITS),
        cat(text(zeros + digit), _digits_up_to(rest, high_open)),
    )
    if not low_open:
        found = alt(found, *(text("0" * num) for num in range(0 if shared else 1, num_zeros + 1)))
    return cat(text(shared), found)


def _digits_from(low: str, is_open: bool, *, can_end: bool = False) -> Regex:
    """No less than these; where they ``can_end`` no digit may be one."""
    if not low and not is_open:
        return _DIGITS if can_end else cat(_DIGIT, _DIGITS)
    more = _differing(low, lambda digit, _: cat(_digit(digit + 1, 9), _DIGITS))
    return alt(more, cat(text(low), _MORE_THAN_ZEROS if is_open else _DIGITS))


def _digits_up_to(high: str, is_open: bool) -> Regex:
    """No more than these, behind others: fewer are less."""
    less = _differing(high, lambda digit, _: alt(EMPTY_TEXT, cat(_digit(0, digit - 1), _DIGITS)))
    return alt(less, NOTHING if is_open else cat(text(high), _ZEROS))


def _parts(number: Decimal) -> tuple[int, str]:
    """Its whole part, and the digits behind the point without zeros at the end."""
    whole, _, digits = f"{number:f}".partition(".")
    return int(whole), digits.rstrip("0")


def _whole(low: int, high: int | None) -> Regex:
    """Whole numbers without a sign, by the number of their digits."""
    if high is not None and high < low:
        return NOTHING
    least = str(low)
    num = len(least)
    if high is None:
        return alt(_from(least), cat(_digit(1, 9), repeat(_DIGIT, num, None)))
    most = str(high)
    if len(most) == num:
        return _same_length(least, most)
    between: Regex = NOTHING
    if len(most) - num > 1:
        between = cat(_digit(1, 9), repeat(_DIGIT, num, len(most) - 2))
    return alt(_from(least), between, _same_length("1" + "0" * (len(most) - 1), most))


def _same_length(low: str, high: str) -> Regex:
    same = next((num for num in range(len(low)) if low[num] != high[num]), len(low))
    if same == len(low):
        return text(low)
    digits, rest = (int(low[same]), int(high[same])), len(low) - same - 1
    return cat(
        text(low[:same]),
        alt(
            cat(text(low[same]), _from(low[same + 1 :])),
            cat(_digit(digits[0] + 1, digits[1] - 1), repeat(_DIGIT, rest, rest)),
            cat(text(high[same]), _up_to(high[same + 1 :])),
        ),
    )


def _from(low: str) -> Regex:
    """As many digits that are no less."""
    more = _differing(low, lambda digit, num: cat(_digit(digit + 1, 9), repeat(_DIGIT, num, num)))
    return alt(text(low), more)


def _up_to(high: str) -> Regex:
    """As many digits that are no more."""
    less = _differing(high, lambda digit, num: cat(_digit(0, digit - 1), repeat(_DIGIT, num, num)))
    return alt(text(high), less)


def _differing(digits: str, other: Callable[[int, int], Regex], num_behind: int = 0) -> Regex:
    """Other digits, by the first place that differs: what stands there, and for all behind it.

    By halves, so that many digits are neither long to write nor deep.
    """
    if len(digits) < 2:
        return other(int(digits), num_behind) if digits else NOTHING
    half = len(digits) // 2
    first, second = digits[:half], digits[half:]
    return alt(
        _differing(first, other, num_behind + len(second)),
        cat(text(first), _differing(second, other, num_behind)),
    )
