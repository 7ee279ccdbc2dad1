"""Sets of texts as sets of their bytes: each character of a set stands for a byte."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from octavo.guided.schema.regex import Alt, Cat, Chars, Range, Regex, Repeat, alt, cat, repeat

_BORDERS = (0x7F, 0x7FF, 0xFFFF, 0x10FFFF)
"""The last character of one byte, of two, of three, of four."""


@cache
def utf8(node: Regex) -> Regex:
    """The texts in UTF-8; for sets without ``Both`` and ``Other``."""
    match node:
        case Chars(ranges):
            runs = [run for low, high in ranges for run in byte_ranges(low, high)]
            return alt(*(cat(*(Chars((each,)) for each in run)) for run in runs))
        case Cat(parts):
            return cat(*map(utf8, parts))
        case Alt(choices):
            return alt(*map(utf8, choices))
        case Repeat(part, low, high):
            return repeat(utf8(part), low, high)
    raise AssertionError("only plain sets have bytes")


def byte_ranges(low: int, high: int) -> Iterator[list[Range]]:
    """The bytes of these characters: one list for each run in which they vary independently."""
    for border in _BORDERS:
        if low <= border < high:
            yield from byte_ranges(low, border)
            yield from byte_ranges(border + 1, high)
            return
    first, last = chr(low).encode(), chr(high).encode()
    for place in range(1, len(first)):
        step = 1 << 6 * place
        if low // step != high // step:
            if low % step:
                middle = low - low % step + step
            elif high % step != step - 1:
                middle = high - high % step
            else:
                continue
            yield from byte_ranges(low, middle - 1)
            yield from byte_ranges(middle, high)
            return
    yield list(zip(first, last, strict=True))
