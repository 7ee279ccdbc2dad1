"""Patterns as JSON Schema means them (ECMA-262, searched for) as sets of whole strings."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product

from octavo.guided.schema import regex
from octavo.guided.schema.regex import EMPTY_TEXT, NOTHING, Range, Regex, alt, cat, chars

MAX_PATTERN_CHARS = 8_000
MAX_DEPTH = 50
MAX_SEQUENCES = 64


class PatternError(ValueError):
    """A pattern that is malformed, or not a regular expression in the strict sense."""


DIGITS: list[Range] = [(48, 57)]
WORD: list[Range] = [(48, 57), (65, 90), (95, 95), (97, 122)]
SPACES: list[Range] = [
    *((9, 13), (32, 32), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A)),
    *((0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)),
]
LINE_ENDS: list[Range] = [(10, 10), (13, 13), (0x2028, 0x2029)]
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13}


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """What patterns mean where dialects differ."""

    classes: Mapping[str, list[Range]]
    """What letters behind a backslash mean; capitals mean the others."""
    line_ends: list[Range]
    """What a dot leaves out."""
    has_plain_classes: bool
    """Whether ``[``, ``&&`` and their like stand for themselves between brackets."""


ECMA = Dialect(
    classes={"d": DIGITS, "w": WORD, "s": SPACES}, line_ends=LINE_ENDS, has_plain_classes=True
)


class _Anchor:
    """``^`` or ``$`` before it is known what it means where it stands."""

    nullable = True


_START, _END = _Anchor(), _Anchor()
_Item = Regex | _Anchor
_Sequences = list[tuple[_Item, ...]]
"""Alternatives; anchors stand only at this level."""


def parse_pattern(pattern: str, dialect: Dialect = ECMA) -> Regex:
    """Every string in which the pattern is found."""
    if len(pattern) > MAX_PATTERN_CHARS:
        raise PatternError(f"longer than {MAX_PATTERN_CHARS} characters")
    parser = _Parser(pattern, dialect)
    sequences = parser.choices(0)
    if parser.peek() is not None:
        raise PatternError(f"an unmatched ) at character {parser.position}")
    return alt(*(_whole(sequence) for sequence in sequences))


def _whole(sequence: tuple[_Item, ...]) -> Regex:
    """The strings in which one sequence is found: anchors cut off what may stand around it."""
    starts = [index for index, item in enumerate(sequence) if item is _START]
    ends = [index for index, item in enumerate(sequence) if item is _END]
    first, last = (starts[-1] if starts else -1), (ends[0] if ends else len(sequence))
    if any(not item.nullable for item in (*sequence[: max(first, 0)], *sequence[last:])):
        return NOTHING  # an anchor with a character before or behind it
    if first > last:
        inner = sequence[last : first + 1]
        return EMPTY_TEXT if all(item.nullable for item in inner) else NOTHING
    kept: list[Regex] = []
    for item in sequence[first + 1 : last]:
        if not isinstance(item, _Anchor):
            kept += item.parts if isinstance(item, regex.Cat) else [item]
    if not starts:
        kept = [regex.ANY_TEXT, *_shortened(kept)]
    if not ends:
        kept = [*reversed(_shortened(kept[::-1])), regex.ANY_TEXT]
    return cat(*kept)


def _shortened(items: list[Regex]) -> list[Regex]:
    """What is found behind any text where these are: of a repetition there the least will do."""
    for index, item in enumerate(items):
        if not isinstance(item, regex.Repeat) or item == regex.ANY_TEXT:
            return items[index:]
        if item.low:
            return [regex.repeat(item.part, item.low, item.low), *items[index + 1 :]]
    return []


class _Parser:
    def __init__(self, pattern: str, dialect: Dialect) -> None:
        self.pattern = pattern
        self.dialect = dialect
        self.position = 0

    def peek(self) -> str | None:
        return self.pattern[self.position] if self.position < len(self.pattern) else None

    def take(self) -> str:
        char = self.peek()
        if char is None:
            raise PatternError("it ends too early")
        self.position += 1
        return char

    def skip(self, prefix: str) -> bool:
        found = self.pattern.startswith(prefix, self.position)
        self.position += len(prefix) if found else 0
        return found

    def choices(self, depth: int) -> _Sequences:
        if depth > MAX_DEPTH:
            raise PatternError(f"groups nested deeper than {MAX_DEPTH}")
        sequences = self.sequence(depth)
        while self.skip("|"):
            sequences += self.sequence(depth)
        if not any(_anchored(sequences)):
            return [(alt(*(cat(*sequence) for sequence in sequences)),)]  # type: ignore[arg-type]
        return sequences

    def sequence(self, depth: int) -> _Sequences:
        sequences: _Sequences = [()]
        while self.peek() not in (None, "|", ")"):
            item = self.quantified(self.atom(depth))
            if len(sequences) * len(item) > MAX_SEQUENCES:
                raise PatternError("too many alternatives that hold ^ or $")
            sequences = [(*head, *tail) for head, tail in product(sequences, item)]
        return sequences

    def atom(self, depth: int) -> _Sequences:
        char = self.take()
        if char == "(":
            return self.group(depth)
        if char == "^":
            return [(_START,)]
        if char == "$":
            return [(_END,)]
        return [(self.character(char),)]

    def character(self, char: str) -> Regex:
        if char == "[":
            return self.bracket()
        if char == ".":
            return regex.other_chars(self.dialect.line_ends)
        if char == "\\":
            return chars(self.escape())
        if char in "*+?":
            raise PatternError(f"nothing to repeat before {char}")
        return chars([(ord(char), ord(char))])

    def group(self, depth: int) -> _Sequences:
        if self.skip("?"):
            if self.peek() in ("=", "!"):
                raise PatternError("a lookahead, which no guide can enforce")
            if self.pattern.startswith(("<=", "<!"), self.position):
                raise PatternError("a lookbehind, which no guide can enforce")
            if self.skip("<") or self.skip("P<"):
                while self.take() != ">":
                    pass
            elif not self.skip(":"):
                raise PatternError(f"a group that begins with ?{self.peek()}")
        found = self.choices(depth + 1)
        if not self.skip(")"):
            raise PatternError("a ( that is not closed")
        return found

    def quantified(self, item: _Sequences) -> _Sequences:
        bounds = self.quantifier()
        if bounds is None:
            return item
        low, high = bounds
        if not any(_anchored(item)):
            parts = [cat(*sequence) for sequence in item]  # type: ignore[arg-type]
            return [(regex.repeat(alt(*parts), low, high),)]
        if (low, high) == (0, 1):
            return [*item, ()]
        if (low, high) == (1, 1):
            return item
        raise PatternError("a repetition of ^ or $")

    def quantifier(self) -> tuple[int, int | None] | None:
        bounds: tuple[int, int | None] | None = None
        if self.skip("*"):
            bounds = (0, None)
        elif self.skip("+"):
            bounds = (1, None)
        elif self.skip("?"):
            bounds = (0, 1)
        elif self.peek() == "{":
            bounds = self.counts()
        if bounds is not None:
            self.skip("?")  # lazy: the same strings
            if self.peek() in ("*", "+", "?") or (self.peek() == "{" and self.counts(look=True)):
                raise PatternError(f"a repetition of a repetition at character {self.position}")
        return bounds

    def counts(self, look: bool = False) -> tuple[int, int | None] | None:
        """``{2}``, ``{2,}`` or ``{2,3}``; any other brace stands for itself."""
        close = self.pattern.find("}", self.position)
        low, comma, high = self.pattern[self.position + 1 : max(close, 0)].partition(",")
        if not _is_number(low) or (high and not _is_number(high)) or len(low + high) > 12:
            return None
        if not look:
            self.position = close + 1
        bounds = (int(low), int(high) if high else None if comma else int(low))
        if bounds[1] is not None and bounds[1] < bounds[0]:
            raise PatternError(f"{{{low},{high}}} in the wrong order")
        return bounds

    def bracket(self) -> Regex:
        begin = self.position
        negated = self.skip("^")
        ranges: list[Range] = []
        while not self.skip("]"):
            low = self.member()
            if self.peek() == "-" and not self.pattern.startswith("-]", self.position):
                self.take()
                high = self.member()
                if len(low) > 1 or len(high) > 1 or low[0][0] != low[0][1]:
                    ranges += [*low, (45, 45), *high]  # a class beside the dash
                    continue
                if high[0][1] < low[0][0] or high[0][0] != high[0][1]:
                    raise PatternError("a range in the wrong order")
                ranges.append((low[0][0], high[0][1]))
            else:
                ranges += low
        content = self.pattern[begin : self.position - 1]
        if not self.dialect.has_plain_classes and _NESTED.search(content):
            raise PatternError(f"[{content}], which dialects read differently")
        return regex.other_chars(ranges) if negated else chars(ranges)

    def member(self) -> list[Range]:
        char = self.take()
        if char != "\\":
            return [(ord(char), ord(char))]
        if self.skip("b"):
            return [(8, 8)]
        return self.escape()

    def escape(self) -> list[Range]:
        char = self.take()
        classes = self.dialect.classes
        if char in classes:
            return classes[char]
        if char.lower() in classes:
            return list(regex.other_chars(classes[char.lower()]).ranges)
        if char in _CONTROLS:
            return [(_CONTROLS[char], _CONTROLS[char])]
        if char in "pP":
            return self.category(negated=char == "P")
        if char in "bB":
            raise PatternError(f"a word boundary \\{char}, which no guide can enforce")
        if char == "0" and not _is_number(self.peek() or ""):
            return [(0, 0)]
        if char.isdigit() or char == "k":
            raise PatternError(f"a back reference \\{char}, which no guide can enforce")
        code = self.code(char)
        return [(code, code)]

    def code(self, char: str) -> int:
        if char == "c":
            return ord(self.take()) % 32
        if char == "x":
            return self.hexadecimal(2)
        if char == "u" and self.skip("{"):
            close = self.pattern.find("}", self.position)
            return min(self.hexadecimal(close - self.position, behind=1), regex.LAST)
        if char == "u":
            code = self.hexadecimal(4)
            if 0xD800 <= code < 0xDC00 and self.skip("\\u"):
                return 0x10000 + ((code - 0xD800) << 10) + (self.hexadecimal(4) - 0xDC00)
            return code
        if char.isascii() and char.isalnum():
            raise PatternError(f"an escape \\{char} that ECMA-262 does not know")
        return ord(char)

    def hexadecimal(self, count: int, behind: int = 0) -> int:
        digits = self.pattern[self.position : self.position + count]
        if len(digits) != count or not 0 < count < 9 or not set(digits) <= _HEXADECIMAL:
            raise PatternError(f"a hexadecimal escape without its digits: {digits!r}")
        self.position += count + behind
        return int(digits, 16)

    def category(self, negated: bool) -> list[Range]:
        close = self.pattern.find("}", self.position)
        name = self.pattern[self.position + 1 : max(close, 0)]
        if not self.skip("{"):
            raise PatternError("\\p without a name in braces")
        self.position = close + 1
        name = name.removeprefix("General_Category=").removeprefix("gc=")
        name = _LONG_CATEGORIES.get(name, name)
        known = _categories()
        ranges = [span for key in known if key.startswith(name) for span in known[key]]
        if not ranges or len(name) > 2 or not name:
            raise PatternError(f"\\p{{{name}}}: only general categories such as L or Nd are known")
        return list((regex.other_chars(ranges) if negated else chars(ranges)).ranges)


_NESTED = re.compile(r"^\^?$|^(?:[^\\]|\\.)*?(?:\[|&&|--|~~)", re.DOTALL)
"""Between brackets: nothing, what may be a class inside a class, or sets of classes."""
_HEXADECIMAL = set("0123456789abcdefABCDEF")
_LONG_CATEGORIES = {
    "Letter": "L",
    "Uppercase_Letter": "Lu",
    "Lowercase_Letter": "Ll",
    "Mark": "M",
    "Number": "N",
    "Decimal_Number": "Nd",
    "digit": "Nd",
    "Punctuation": "P",
    "Symbol": "S",
    "Separator": "Z",
    "Space_Separator": "Zs",
    "Other": "C",
    "Control": "Cc",
}


def _is_number(value: str) -> bool:
    return value.isascii() and value.isdigit()


def _anchored(sequences: _Sequences) -> list[bool]:
    return [isinstance(item, _Anchor) for sequence in sequences for item in sequence]


@cache
def _categories() -> dict[str, list[Range]]:
    """Ranges by general category; surrogates are no characters."""
    found: dict[str, list[Range]] = {}
    previous = ""
    for code in range(regex.LAST + 1):
        category = unicodedata.category(chr(code))
        if category == previous:
            spans = found[category]
            spans[-1] = (spans[-1][0], code)
        else:
            found.setdefault(category, []).append((code, code))
        previous = category
    return found
