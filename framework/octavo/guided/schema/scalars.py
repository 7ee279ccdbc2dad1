"""What a schema says of a number or a string, and what two of them say together."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import gcd

from octavo.guided.schema import regex
from octavo.guided.schema.regex import ANY_TEXT, Regex
from octavo.guided.schema.values import exact, written


@dataclass(frozen=True, slots=True)
class Numbers:
    """Between two bounds, and a multiple."""

    low: Fraction | None = None
    low_open: bool = False
    high: Fraction | None = None
    high_open: bool = False
    multiple: Fraction | None = None
    """1 for integers."""
    not_multiples: tuple[tuple[Fraction, str], ...] = ()
    """With the place of the keyword to blame."""

    def meet(self, other: Numbers) -> Numbers:
        """Both at once."""
        low, low_open = _tighter(self.low, self.low_open, other.low, other.low_open, 1)
        high, high_open = _tighter(self.high, self.high_open, other.high, other.high_open, -1)
        multiple = self.multiple or other.multiple
        if self.multiple and other.multiple:
            multiple = _common_multiple(self.multiple, other.multiple)
        barred = self.not_multiples + other.not_multiples
        return Numbers(low, low_open, high, high_open, multiple, barred)

    def admits(self, number: Fraction) -> bool:
        """Whether the number is one of them."""
        if self.low is not None and (number < self.low or (self.low_open and number == self.low)):
            return False
        if self.high is not None and (
            number > self.high or (self.high_open and number == self.high)
        ):
            return False
        if self.multiple and number % self.multiple:
            return False
        return all(number % step for step, _ in self.not_multiples)

    def tightened(self) -> Numbers:
        """With bounds that are multiples themselves, where such a bound can be written."""
        step = self.multiple
        if step is None:
            return self
        low, low_open = self.low, self.low_open
        if low is not None:
            least = -(-low // step) * step
            least += step if low_open and least == low else 0
            if exact(written(least)) == least:
                low, low_open = least, False
        high, high_open = self.high, self.high_open
        if high is not None:
            most = high // step * step
            most -= step if high_open and most == high else 0
            if exact(written(most)) == most:
                high, high_open = most, False
        return Numbers(low, low_open, high, high_open, step, self.not_multiples)

    def leaves_out_a_whole_bound_near_the_other(self) -> bool:
        """Whether a bound that is none of them is whole, and less than 1 lies between the two."""
        if self.low is None or self.high is None or self.high - self.low >= 1:
            return False
        left_out = ((self.low, self.low_open), (self.high, self.high_open))
        return any(is_open and bound.denominator == 1 for bound, is_open in left_out)

    def is_empty(self) -> bool:
        """Whether no number is one of them; False where that is not seen at once."""
        if self.multiple and any(not self.multiple % step for step, _ in self.not_multiples):
            return True
        tight = self.tightened()
        if tight.low is None or tight.high is None:
            return False
        return tight.low > tight.high or (tight.low == tight.high and not tight.admits(tight.low))


def _tighter(
    first: Fraction | None, first_open: bool, second: Fraction | None, second_open: bool, sign: int
) -> tuple[Fraction | None, bool]:
    if first is None or second is None:
        return (second, second_open) if first is None else (first, first_open)
    if first == second:
        return first, first_open or second_open
    return (first, first_open) if (first - second) * sign > 0 else (second, second_open)


def _common_multiple(first: Fraction, second: Fraction) -> Fraction:
    above = first.numerator * second.numerator // gcd(first.numerator, second.numerator)
    return Fraction(above, gcd(first.denominator, second.denominator))


@dataclass(frozen=True, slots=True)
class Strings:
    """Strings of a length in characters, and in a set."""

    low: int = 0
    high: int | None = None
    pattern: Regex = ANY_TEXT
    pointer: str = ""
    """Where to look when the pattern cannot be expressed."""

    def meet(self, other: Strings) -> Strings:
        """Both at once."""
        return Strings(
            max(self.low, other.low),
            least(self.high, other.high),
            regex.both(self.pattern, other.pattern),
            self.pointer or other.pointer,
        )

    def admits(self, value: str) -> bool:
        """Whether the string is one of them."""
        if len(value) < self.low or (self.high is not None and len(value) > self.high):
            return False
        return regex.matches(self.pattern, value)

    def is_empty(self) -> bool:
        """Whether no string is one of them; False where that takes too long to see."""
        if self.high is not None and self.low > self.high:
            return True
        if self.pattern == ANY_TEXT:
            return False
        shortest = regex.shortest(self.pattern)
        if shortest is not None and self.low <= shortest and least(self.high, shortest) == shortest:
            return False
        long = self.low > 64 or (self.high or 0) > 64
        length = ANY_TEXT if long else regex.repeat(regex.ANY_CHAR, self.low, self.high)
        try:
            return regex.is_empty(regex.both(self.pattern, length))
        except regex.TooManyStates:
            return False


def least(first: int | None, second: int | None) -> int | None:
    """The smaller of two upper bounds; None is no bound."""
    if first is None or second is None:
        return second if first is None else first
    return min(first, second)
