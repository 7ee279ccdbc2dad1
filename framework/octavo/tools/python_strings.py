"""Python strings in calls, whose text becomes the inside of JSON strings as it comes."""

from __future__ import annotations

import re

from octavo.tools.bare_values import NAME
from octavo.tools.json_text import encoded
from octavo.tools.reader import Reader, Reading, Sink

_QUOTES = ("'''", '"""', "'", '"')
_HEX = re.compile("[0-9a-fA-F]+")
_OCTAL = re.compile("[0-7]+")
_ESCAPED = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\n": ""}
_ESCAPES = _ESCAPED | {character: character for character in "\\\"'/"}
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}

# Models write strings as their templates do, and these escape nothing: 'it's'. So a quote ends a
# string only if what follows goes on as Python would. This much is looked at:
_LONGEST_LOOK = 47
_AFTER_ELEMENT = re.compile(r"""\s*[,\])}:'"]"""), re.compile(r"\s*")
_AFTER_ARGUMENT = (
    re.compile(r"""\s*(?:,\s*(?:[\w.\-]+\s*=|\))|\)\s*[,;\]<]|\)[^\S\n]*\n|['"])"""),
    re.compile(r"\s*(?:,\s*(?:[\w.\-]+\s*)?|\)[^\S\n]*)?"),
)
_OPENING = r"""('''|"{3}|'(?!'?\Z)|"(?!"?\Z))"""
_QUOTE = re.compile(_OPENING)


_GOES_ON = {
    False: r"""\s{0,40}+[^\s,\])}:'"]""",
    True: r"""\s{0,4}+(?:[^\s,)'"]|,\s{0,16}+[\w.\-]{0,16}+\s{0,4}+[^\s\w.\-=)]"""
    r"|\)[^\S\n]{0,16}+[^\s,;\]<])",
}
"""What shows within the longest look that the quote before it ends no string; for an argument."""


def _inside(quote: str, is_argument: bool) -> str:
    """Return a pattern of text in which no quote ends the string for certain, and no digits count.

    It is what is repeated.
    """
    quoted = rf"|{quote}(?={_GOES_ON[is_argument]})" if len(quote) == 1 else ""
    return rf"(?:[^{quote[0]}\\]++|\\[^xuU0-7]{quoted})"


def quoted(*, is_argument: bool) -> str:
    """Return a pattern of strings that end for certain if what may follow a string follows them."""
    return "|".join(f"{quote}{_inside(quote, is_argument)}*+{quote}" for quote in "'\"")


def text_inside(written: str) -> str:
    """Return what the inside of such a string says, encoded for JSON."""
    return encoded(_ESCAPE.sub(_unescaped, written) if "\\" in written else written)


def _end(quote: str, is_argument: bool) -> re.Pattern[str]:
    """Return what finds quotes that end the string for certain, and a string that follows it."""
    follows = rf"(?=,\s?{NAME}{{1,32}}+=)" if is_argument else r"\s*+(?=[,\])}:])"
    return re.compile(rf"{quote}(?:{follows}|\s*+{_OPENING})")


_AT_ONCE = {
    (quote, is_argument): (
        re.compile(_inside(quote, is_argument) + "++"),
        _end(quote, is_argument),
    )
    for quote in _QUOTES
    for is_argument in (False, True)
}


def opening_quote(reader: Reader) -> Reading[str | None]:
    """Read the quotes with which a string begins; None: none does."""
    if at_once := reader.take_at_once(_QUOTE):
        return at_once[1]
    if (yield from reader.peek()) not in ("'", '"'):
        return None
    return (yield from reader.literal(*_QUOTES))


def python_string(
    reader: Reader, quote: str | None, to: Sink, *, is_argument: bool
) -> Reading[bool]:
    """Pass on strings that follow one another, behind the first quotes; return whether they ended.

    ``is_argument``: it is the value of an argument, not part of one.
    """
    after = _AFTER_ARGUMENT if is_argument else _AFTER_ELEMENT
    while quote:
        inside, ends = _AT_ONCE[quote, is_argument]
        if text := reader.take_at_once(inside):
            to(text_inside(text[0]))
        if end := reader.take_at_once(ends):
            quote = end[1]
            continue
        tag = yield from reader.text_until(quote, "\\", to=lambda text: to(encoded(text)))
        if tag == "\\":
            yield from _escape(reader, to)
        elif tag is None:
            return False
        elif (yield from _closes(reader, *after)):
            yield from reader.spaces()
            quote = yield from opening_quote(reader)
        else:
            to(encoded(quote))
    return True


def _closes(reader: Reader, after: re.Pattern[str], undecided: re.Pattern[str]) -> Reading[bool]:
    while True:
        text = reader.coming(_LONGEST_LOOK)
        if after.match(text):
            return True
        if not undecided.fullmatch(text):
            return False
        if len(text) == _LONGEST_LOOK or text == (yield from reader.peek(len(text) + 1)):
            return True


def _escape(reader: Reader, to: Sink) -> Reading[None]:
    kind = yield from reader.peek()
    if kind in _ESCAPES:
        yield from reader.take(1)
        to(encoded(_ESCAPES[kind]))
    elif kind in _HEX_DIGITS:
        size = _HEX_DIGITS[kind]
        digits = (yield from reader.peek(1 + size))[1:]
        if len(digits) == size and _HEX.fullmatch(digits) and int(digits, 16) < 0x110000:
            yield from reader.take(1 + size)
            code = int(digits, 16)
            to(encoded(chr(code)) if code > 0xFFFF else rf"\u{code:04x}")
        else:
            to(r"\\")
    elif kind and kind in "01234567":
        octal = _OCTAL.match((yield from reader.peek(3)))
        assert octal is not None
        yield from reader.take(octal.end())
        to(encoded(chr(int(octal[0], 8))))
    else:
        to(r"\\")


def _unescaped(escape: re.Match[str]) -> str:
    return _ESCAPES.get(escape[1], escape[0])
