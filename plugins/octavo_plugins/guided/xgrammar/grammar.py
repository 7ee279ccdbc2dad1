"""Constraints as xgrammar's EBNF.

The library writes the grammar of a schema, and five things in it are replaced: strings with a
pattern or a length, which it reads too strictly or not as JSON; numbers with bounds or of a list,
which it reads as floats and writes with exponents; escapes of characters in names, by
which a listed name could be written once more as another one; classes of characters, which take
halves of surrogate pairs, whose bytes are no UTF-8; and blanks, which a small model would write on
and on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from xgrammar import Grammar

from octavo.errors import UnsupportedConstraint
from octavo.guided.schema import regex
from octavo.guided.schema.number_text import integers, numbers
from octavo.guided.schema.regex import Alt, Cat, Chars, Range, Regex, Repeat, TooManyStates
from octavo.guided.schema.regex_parse import PatternError, parse_pattern
from octavo.guided.schema.regex_plain import plain
from octavo.guided.schema.values import literal
from octavo_registry.guided import Constraint

MOST_TIMES = 4096
"""That something may be repeated: the library takes large limits for none, without an error."""
_ESCAPES = {'"': '"', "\\": "\\", "\n": "n", "\r": "r", "\t": "t", "\b": "b", "\f": "f"}
_WRITTEN_PLAINLY = regex.other_chars([(0, 31), (34, 34), (92, 92)])
"""Characters that a JSON string holds as they are."""
_SURROGATES = (0xD800, 0xDFFF)
_BLANK = r'"" | " " | "\r"? "\n" [ \t]{0,64}'

_BOUNDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
_COUNTS = ("minItems", "maxItems", "minProperties", "maxProperties")

_ANY_CHARACTER = r"[^\0-\x1f\"\\\r\n"
"""Begins the library's class, and is followed by what else it leaves out."""
_ESCAPE_RULE = re.compile(r"^basic_escape ::= .*$", re.MULTILINE)
_BLANK_RULE = re.compile(r'^(\w+) ::= \("" \| \(\[ \\n\\r\\t\]\)\)$', re.MULTILINE)
_SET_RULE = re.compile(r'^(\w+) ::= Regex\("\^p(\d+)\$", json_string=true\)$', re.MULTILINE)


def grammar_of(constraint: Constraint) -> str:
    """The constraint's grammar, with the rule ``root``."""
    value = constraint.value
    match constraint.kind:
        case "json":
            return _of_schema(value)
        case "regex":
            return f"root ::= {_expression(_parsed(f'^(?:{value})$'))}"
        case "choice":
            return f"root ::= {' | '.join(map(_quoted, value))}"
    raise UnsupportedConstraint(f"xgrammar does not enforce constraints of kind {constraint.kind}")


def _of_schema(schema: Any) -> str:
    sets: list[_Set] = []
    marked = json.dumps(_marked(schema, sets))
    text = str(Grammar.from_json_schema(marked, strict_mode=False, max_whitespace_cnt=1))
    text, num_escapes = _ESCAPE_RULE.subn(lambda _: r"basic_escape ::= [\"\\bfnrt]", text)
    has_classes = _ANY_CHARACTER in text
    text = text.replace(_ANY_CHARACTER, rf"{_ANY_CHARACTER}\uD800-\uDFFF")
    text = _BLANK_RULE.sub(lambda found: f"{found[1]} ::= {_BLANK}", text)
    used = set[int]()

    for name, number in _SET_RULE.findall(text):
        if not sets[int(number)].is_string:
            text = text.replace(f'"\\"" {name} "\\""', name)

    def body(found: re.Match[str]) -> str:
        used.add(int(found[2]))
        one = sets[int(found[2])]
        return f"{found[1]} ::= {_expression(one.texts, in_json=one.is_string)}"

    text = _SET_RULE.sub(body, text)
    if num_escapes != 1 or not has_classes or len(used) != len(sets):
        raise UnsupportedConstraint("xgrammar: its grammar of the schema is not of the known form")
    return text


class _Set(NamedTuple):
    """The strings or numbers that may stand at one place of a schema."""

    texts: Regex
    is_string: bool


def _marked(core: Any, sets: list[_Set]) -> Any:
    """The schema, with a mark for the set of each string or number that is bound."""
    if not isinstance(core, dict):
        return core
    if core.get("type") == "string" and core.keys() & {"pattern", "minLength", "maxLength"}:
        node = _parsed(core.get("pattern", ""))
        low, high = core.get("minLength", 0), core.get("maxLength")
        if (low, high) != (0, None):
            node = regex.both(node, regex.repeat(regex.ANY_CHAR, low, high))
        return _mark(_Set(_plain(node), is_string=True), sets)
    if core.get("type") in ("integer", "number") and core.keys() & _BOUNDS:
        if "multipleOf" in core:
            raise UnsupportedConstraint("xgrammar: 'multipleOf' beside bounds cannot be enforced")
        texts = integers(core) if core["type"] == "integer" else numbers(core)
        return _mark(_Set(texts, is_string=False), sets)
    if numeric := [value for value in _values(core) if _is_number(value)]:
        texts = regex.alt(*(regex.text(literal(value)) for value in numeric))
        mark = _mark(_Set(texts, is_string=False), sets)
        rest = [value for value in _values(core) if not _is_number(value)]
        return {"anyOf": [mark, {"enum": rest}]} if rest else mark
    if core.get("additionalProperties", True) is not False:
        for name in core.get("properties", ()):
            if json.dumps(name) != f'"{name}"':
                # It bars names as they are read, not as they are written, and by single bytes.
                raise UnsupportedConstraint(
                    f"xgrammar: 'additionalProperties' beside {name!r}, which is not of ASCII "
                    "without escapes, cannot be enforced"
                )
    _check_times(*(core.get(name, 0) for name in _COUNTS))
    found = dict(core)
    for key in core.keys() & {"items", "additionalProperties"}:
        found[key] = _marked(core[key], sets)
    for key in core.keys() & {"prefixItems", "anyOf"}:
        found[key] = [_marked(item, sets) for item in core[key]]
    for key in core.keys() & {"properties", "$defs"}:
        found[key] = {name: _marked(item, sets) for name, item in core[key].items()}
    return found


def _mark(one: _Set, sets: list[_Set]) -> dict[str, str]:
    """A schema of which the library makes a rule that is easily found."""
    sets.append(one)
    return {"type": "string", "pattern": f"^p{len(sets) - 1}$"}


def _values(core: dict[str, Any]) -> list[Any]:
    values: list[Any] = core.get("enum", [core["const"]] if "const" in core else [])
    return values


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _check_times(*counts: int) -> None:
    if max(counts) > MOST_TIMES:
        raise UnsupportedConstraint(
            f"xgrammar: {max(counts)} repetitions cannot be enforced, at most {MOST_TIMES}"
        )


def _parsed(pattern: str) -> Regex:
    try:
        return parse_pattern(pattern)
    except PatternError as error:
        raise UnsupportedConstraint(f"xgrammar: the pattern has {error}") from error


def _plain(node: Regex) -> Regex:
    try:
        return plain(node)
    except TooManyStates as error:
        raise UnsupportedConstraint(
            "xgrammar: a pattern with minLength or maxLength has too many states"
        ) from error


def _expression(node: Regex, *, in_json: bool = False) -> str:
    match node:
        case Chars(ranges):
            return _characters(ranges, in_json=in_json)
        case Cat(parts):
            return " ".join(_expression(part, in_json=in_json) for part in parts) or '""'
        case Alt(parts):
            return f"({' | '.join(sorted(_expression(p, in_json=in_json) for p in parts))})"
        case Repeat(part, low, high):
            _check_times(low, high or 0)
            body = f"({_expression(part, in_json=in_json)})"
            if high is None and low < 2:
                return body + "*+"[low]
            return f"{body}{{{low},{'' if high is None else high}}}"
    raise AssertionError("only plain sets can be written as a grammar")


def _characters(ranges: Sequence[Range], *, in_json: bool) -> str:
    barred = regex.other_chars([*regex.other_chars(ranges).ranges, _SURROGATES])
    if not in_json:
        return _class(barred.ranges)
    plainly = regex.other_chars(
        [
            *regex.other_chars(barred.ranges).ranges,
            *regex.other_chars(_WRITTEN_PLAINLY.ranges).ranges,
        ]
    )
    options = [_class(plainly.ranges)] if plainly.ranges else []
    for char, short in _ESCAPES.items():
        if any(low <= ord(char) <= high for low, high in ranges):
            options.append(_quoted(f"\\{short}"))
    if not options:
        raise UnsupportedConstraint("xgrammar: a pattern asks for control characters")
    return f"({' | '.join(options)})"


def _class(ranges: Sequence[Range]) -> str:
    if not ranges:
        raise UnsupportedConstraint("xgrammar: a class of the pattern is empty")
    return f"[{''.join(f'{_escaped(low)}-{_escaped(high)}' for low, high in ranges)}]"


def _quoted(text: str) -> str:
    return f'"{"".join(map(_escaped, map(ord, text)))}"'


def _escaped(code: int) -> str:
    return f"\\U{code:08X}" if code > 0xFFFF else f"\\u{code:04X}"
