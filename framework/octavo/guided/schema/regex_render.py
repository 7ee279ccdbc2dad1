"""A set of strings as a pattern that ECMA-262, Python, Rust and the backends read alike."""

from __future__ import annotations

from functools import lru_cache

from octavo.guided.schema import regex
from octavo.guided.schema.regex import ANY_CHAR, ANY_TEXT, Alt, Cat, Chars, Range, Regex, Repeat

REMEMBERED = 512
_SPECIAL = set("\\^$.|?*+()[]{}/-")


@lru_cache(maxsize=REMEMBERED)
def render(node: Regex) -> str:
    """A search pattern, with ``^`` and ``$`` wherever something is bound to an end."""
    if node == ANY_TEXT:
        return ""
    parts = node.parts if isinstance(node, Cat) else (node,)
    begin = 1 if parts and parts[0] == ANY_TEXT else 0
    end = len(parts) - 1 if len(parts) > begin and parts[-1] == ANY_TEXT else len(parts)
    inner = parts[begin:end]
    if len(inner) == 1 and isinstance(inner[0], Alt) and not (begin and end < len(parts)):
        body = f"(?:{_body(inner[0])})"
    else:
        body = "".join(_piece(part) for part in inner)
    return ("" if begin else "^") + body + ("" if end < len(parts) else "$")


def render_whole(node: Regex) -> str:
    """A pattern that must match from end to end, without anchors."""
    return _body(node)


def _body(node: Regex) -> str:
    match node:
        case Chars(ranges):
            return _class(ranges)
        case Cat(parts):
            return "".join(_piece(part) for part in parts)
        case Alt(choices):
            optional = regex.EMPTY_TEXT in choices
            bodies = sorted(_body(part) for part in choices if part != regex.EMPTY_TEXT)
            joined = "|".join(bodies)
            return f"(?:{joined})?" if optional else joined
        case Repeat(part, low, high):
            return _piece(part, repeated=True) + _count(low, high)
    raise AssertionError("only plain sets can be written as a pattern")


def _piece(node: Regex, repeated: bool = False) -> str:
    body = _body(node)
    loose = isinstance(node, Alt) and regex.EMPTY_TEXT not in node.parts
    if loose or (repeated and not isinstance(node, Chars)):
        return f"(?:{body})"
    return body


def _count(low: int, high: int | None) -> str:
    match low, high:
        case 0, None:
            return "*"
        case 1, None:
            return "+"
        case 0, 1:
            return "?"
        case _, None:
            return f"{{{low},}}"
        case _:
            return f"{{{low}}}" if low == high else f"{{{low},{high}}}"


def _class(ranges: tuple[Range, ...]) -> str:
    if ranges == ANY_CHAR.ranges:
        return "[\\s\\S]"
    if not ranges:
        return "[^\\s\\S]"
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return _escaped(ranges[0][0])
    negative = regex.other_chars(ranges).ranges
    if len(negative) < len(ranges):
        return f"[^{_members(negative)}]"
    return f"[{_members(ranges)}]"


def _members(ranges: tuple[Range, ...]) -> str:
    texts = []
    for low, high in ranges:
        dash = "-" if high - low > 1 else ""
        texts.append(_escaped(low) if low == high else f"{_escaped(low)}{dash}{_escaped(high)}")
    return "".join(texts)


def _escaped(code: int) -> str:
    if code < 32 or code == 127:
        return f"\\x{code:02x}"
    char = chr(code)
    return f"\\{char}" if char in _SPECIAL else char
