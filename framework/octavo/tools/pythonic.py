"""Calls written as Python, ``f(a=1, b='x')``, whose literals become JSON text as they come."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from typing import Any, NamedTuple

from octavo.tools.bare_values import ANY, NAME, as_key, bare_json, nesting_marks
from octavo.tools.forms import Function, separated
from octavo.tools.json_text import decoded, encoded
from octavo.tools.loose_values import json_text
from octavo.tools.parameters import ToolTypes
from octavo.tools.python_runs import plain_json, plain_literals
from octavo.tools.python_strings import opening_quote, python_string, text_inside
from octavo.tools.reader import Reader, Reading, Sink
from octavo_registry import ToolDefinition
from octavo_registry.structure import Chain, JsonText, Literal, OneOf, Structure

_NAMES = re.compile(f"{NAME}+")
_DEFINITIONS = ("$defs", "definitions")
_KNOWN = {"type", "properties", "required", "additionalProperties", *_DEFINITIONS} | {
    "$schema",
    "title",
    "description",
    "examples",
    "default",
    "strict",
}
"""What may stand in the schema of all arguments of a call for its form to keep to it."""
_OPENERS = re.compile(r"([\[(]++)\s*+(?=\S)")
_COLON = re.compile(r"\s*+(:?+)\s*+(?=\S)")
_NO_ARGUMENTS = re.compile(rf"({NAME}++)\(\s*+\)")
_KEY = re.compile(rf"({NAME}++)\s*+=\s*+(?=\S)")
_END = re.compile(r"\s*+([,)])")
_SEPARATOR = re.compile(r"\s*+(,?+)\s*+(?=\S)")


class _Bracket(NamedTuple):
    closer: str
    json_closer: str


_LISTS = {"[": _Bracket("]", "]"), "(": _Bracket(")", "]")}
_DICT = _Bracket("}", "}")
_SET = _Bracket("}", "]")


class PythonCalls:
    """Reads calls and passes them on.

    ``ends`` are tags that end calls wherever they stand, but for strings.
    """

    def __init__(
        self, reader: Reader, tools: Sequence[ToolDefinition] | None, ends: tuple[str, ...] = ()
    ) -> None:
        self._reader = reader
        self._types = ToolTypes(tools)
        self._ends = ends
        self._marks = nesting_marks(",:()", ends)
        self._plain = plain_literals(ends)
        self.ended = False
        """Whether one of ``ends`` was read inside a call, or the text ended there."""

    def calls(self, names: Set[str] | None = None) -> Reading[bool]:
        """Read calls with commas or white space between; return whether there was one.

        What is read belongs to the text that the reader holds until a call is certain. With
        ``names`` the first call must be of one of these.
        """
        self.ended = found = False
        while (yield from self._call(names)):
            found, names = True, None
            if self.ended:
                return True
            if not self._reader.take_at_once(_SEPARATOR):
                yield from self._comma()
            if (yield from self._reader.peek()) in ("]", "<", ""):
                return True
            self._reader.hold()
        if found:
            self._reader.give_back()
        return found

    def _call(self, names: Set[str] | None) -> Reading[bool]:
        reader = self._reader
        if names is None and (at_once := reader.take_at_once(_NO_ARGUMENTS)):
            reader.call(at_once[1])
            reader.arguments("{}")
            return True
        name = yield from reader.take_while(NAME)
        if not name or (names is not None and name not in names):
            return False
        if not (yield from reader.literal("(")):
            return False
        yield from reader.spaces()
        if (yield from reader.literal(")")):
            reader.call(name)
            reader.arguments("{}")
            return True
        key, is_key = yield from self._key()
        if not is_key:
            return False
        reader.call(name)
        before = "{"
        while is_key:
            reader.arguments(f'{before}"{encoded(key)}": ')
            before = ", "
            yield from self._value(self._types.of(name, key))
            end = None if self.ended else (yield from self._after_argument())
            if end == ",":
                yield from reader.spaces()
                end = yield from reader.literal(")")
            if end or self.ended:
                break
            while argument := reader.take_at_once(self._plain.argument):
                key, bare, quoted = argument.groups()
                types = self._types.of(name, key)
                value = bare_json(bare.rstrip(), types) if quoted is None else ""
                if quoted:
                    value = _typed(text_inside(quoted[1:-1]), types)
                reader.arguments(f', "{encoded(key)}": {value}')
            key, is_key = yield from self._key()
        else:
            reader.arguments(before + key)
            end = yield from reader.text_until(")", *self._ends, to=reader.arguments)
        if end == ")":
            reader.arguments("}")
        self.ended = end != ")"
        return True

    def _key(self) -> Reading[tuple[str, bool]]:
        if at_once := self._reader.take_at_once(_KEY):
            return at_once[1], True
        key = yield from self._reader.take_while(NAME)
        yield from self._reader.spaces()
        return key, bool(key and (yield from self._reader.literal("=")))

    def _after_argument(self) -> Reading[str | None]:
        """Read what is between arguments, or behind them; what should not be there stays."""
        if at_once := self._reader.take_at_once(_END):
            return at_once[1]
        yield from self._reader.spaces()
        if end := (yield from self._reader.literal(",", ")")):
            return end
        self._reader.arguments(" ")
        end = yield from self._reader.text_until(",", ")", *self._ends, to=self._reader.arguments)
        self.ended = end not in (",", ")")
        return end

    def _value(self, types: frozenset[str]) -> Reading[None]:
        """Pass on a literal. The brackets that are open are in a list: nesting has no limit."""
        reader, to = self._reader, self._reader.arguments
        brackets: list[_Bracket] = []
        yield from reader.spaces()
        while True:
            if brackets and brackets[-1] is not _DICT and not self.ended:
                to(self._plain.elements(reader, brackets[-1].closer))
            opener = reader.ahead or (yield from reader.peek())
            if opener == "{":
                bracket, comes_value = yield from self._opened(to)
                brackets.append(bracket)
            elif opener in _LISTS:
                at_once = reader.take_at_once(_OPENERS)
                openers = at_once[1] if at_once else (yield from reader.take_while(r"[\[(]"))
                to("[" * len(openers))
                brackets += map(_LISTS.__getitem__, openers)
                if not at_once:
                    yield from reader.spaces()
                comes_value = (reader.ahead or (yield from reader.peek())) != brackets[-1].closer
            else:
                stops = "," + (brackets[-1].closer if brackets else ")")
                expected = ANY if brackets else types
                yield from self._scalar(to, stops, expected, is_argument=not brackets)
                comes_value = False
            while not comes_value:
                if self.ended or not brackets:
                    return
                separator = reader.take_at_once(_SEPARATOR)
                comma = separator[1] if separator else (yield from self._comma())
                if (reader.ahead or (yield from reader.peek())) == brackets[-1].closer:
                    yield from reader.take(1)
                    to(brackets.pop().json_closer)
                elif comma:
                    to(", ")
                    if brackets[-1] is _DICT:
                        to(self._plain.pairs(reader))
                        yield from self._dict_key(to)
                    comes_value = True
                else:
                    return

    def _comma(self) -> Reading[bool]:
        yield from self._reader.spaces()
        comma = yield from self._reader.literal(",")
        yield from self._reader.spaces()
        return bool(comma)

    def _opened(self, to: Sink) -> Reading[tuple[_Bracket, bool]]:
        """Read a curly bracket; say which it is, and whether a value comes next."""
        if at_once := self._reader.take_at_once(self._plain.first):
            first_json = plain_json(at_once[1])
            to(f"[{first_json}, " if at_once[2] else "{" + as_key(first_json) + ": ")
            return _SET if at_once[2] else _DICT, True
        yield from self._reader.take(1)
        yield from self._reader.spaces()
        if (yield from self._reader.peek()) == "}":
            to("{")
            return _DICT, False
        first: list[str] = []
        yield from self._scalar(first.append, ":,}")
        if (yield from self._colon()):
            to("{" + as_key("".join(first)) + ": ")
            return _DICT, True
        to("[" + "".join(first))
        return _SET, False

    def _dict_key(self, to: Sink) -> Reading[None]:
        if at_once := self._reader.take_at_once(self._plain.key):
            to(as_key(plain_json(at_once[1])) + ": ")
            return
        key: list[str] = []
        yield from self._scalar(key.append, ":,}")
        if (yield from self._colon()):
            to(as_key("".join(key)) + ": ")
        else:
            to("".join(key))

    def _colon(self) -> Reading[bool]:
        if at_once := self._reader.take_at_once(_COLON):
            return bool(at_once[1])
        yield from self._reader.spaces()
        colon = yield from self._reader.literal(":")
        yield from self._reader.spaces()
        return bool(colon)

    def _scalar(
        self, to: Sink, stops: str, types: frozenset[str] = ANY, *, is_argument: bool = False
    ) -> Reading[None]:
        """Pass on a string, or the text up to one of ``stops``: a number, a word or a string."""
        reader = self._reader
        quote = yield from opening_quote(reader)
        if quote is None:
            to(bare_json((yield from self._bare(stops)), types))
        elif types and "string" not in types:
            parts: list[str] = []
            ended = yield from python_string(reader, quote, parts.append, is_argument=is_argument)
            self.ended = self.ended or not ended
            to(_typed("".join(parts), types))
        else:
            to('"')
            if (yield from python_string(reader, quote, to, is_argument=is_argument)):
                to('"')
            else:
                self.ended = True

    def _bare(self, stops: str) -> Reading[str]:
        """Read up to one of ``stops``, but for those in brackets."""
        reader = self._reader
        parts: list[str] = []
        depth = 0
        if self.ended:
            stops = ",:()[]{}"
        while True:
            text, depth = reader.take_nested(self._marks, stops, depth)
            parts.append(text)
            if not reader.ahead:
                parts.append((yield from reader.take_while(r"[^,:()\[\]{}<]")))
            character = reader.ahead
            if not character or (character == "<" and (yield from reader.literal(*self._ends))):
                self.ended = True
            if self.ended or (depth == 0 and character in stops):
                return "".join(parts).rstrip()
            if character == "<":
                parts.append((yield from reader.take(1)))


def _typed(text: str, types: frozenset[str]) -> str:
    """Return the JSON text of an argument that is a string, encoded: of what its types ask for."""
    # Half of a character in two must stay an escape.
    as_string = not types or "string" in types or r"\u" in text
    return f'"{text}"' if as_string else json_text(decoded(text), types)


def python_call(function: Function) -> Structure | None:
    """Return calls of the function by keywords; None: a schema asks for more than keywords can.

    Required arguments come first, then others, each kind in its order. Literals are JSON's, which
    `PythonCalls` reads too, but for True and False.
    """
    schema = function.parameters
    properties = schema.get("properties", {})
    required = list(dict.fromkeys(schema.get("required", ())))
    keys = [*required, *(key for key in properties if key not in required)]
    if not set(schema) <= _KNOWN or not all(_NAMES.fullmatch(key) for key in keys):
        return None
    definitions = {key: schema[key] for key in _DEFINITIONS if key in schema}

    def argument(key: str) -> Structure:
        value = properties.get(key, True)
        with_definitions = {**definitions, **value} if isinstance(value, Mapping) else value
        return Chain((Literal(f"{key}="), _literal(with_definitions)))

    arguments = separated([(argument(key), key in required) for key in keys], ", ")
    return Chain((Literal(f"{function.name}("), arguments, Literal(")")))


def _literal(schema: Mapping[str, Any] | bool) -> Structure:
    if isinstance(schema, Mapping) and schema.get("type") == "boolean" and set(schema) <= _KNOWN:
        return OneOf((Literal("True"), Literal("False")))
    return JsonText(schema)
