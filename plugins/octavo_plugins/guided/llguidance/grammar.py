"""Constraints as llguidance's dialect of Lark."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from llguidance import LLMatcher, regex_to_lark

from octavo.guided.constraint import OPTIONS
from octavo.guided.lark import with_schemas
from octavo.guided.schema import without_nul
from octavo_plugins.guided.llguidance.nesting import check_grammar, check_schema
from octavo_plugins.guided.llguidance.numbers import rewritten_numbers
from octavo_registry.guided import Constraint
from octavo_registry.structure import (
    Chain,
    JsonText,
    Literal,
    OneOf,
    RegexText,
    Repeat,
    Structure,
    TextUntil,
    Triggered,
    from_plain,
)

JSON_OPTIONS = {
    # As documents are written in one line or indented: a small model would else write blanks on
    # and on, which every document allows.
    "whitespace_pattern": r"( |\r?\n[ \t]{0,64})?",
    # Others would let a name that is listed be written in a way that is not recognised.
    "json_allowed_escapes": 'nrbtf\\"',
}

SPACE_OPTIONS = {"whitespace_flexible", "whitespace_pattern", "item_separator", "key_separator"}
"""Options that a grammar's schemas may set: others would change what is enforced."""


def grammar_of(constraint: Constraint, special_ids: Mapping[str, int]) -> str:
    """The constraint's grammar as the library reads it."""
    value = constraint.value
    match constraint.kind:
        case "json":
            check_schema(value)
            return LLMatcher.grammar_from_json_schema(json.dumps(_with_options(value)))
        case "regex":
            return LLMatcher.grammar_from_regex(value)
        case "grammar":
            check_grammar(value)
            return LLMatcher.grammar_from_lark(with_schemas(value, _with_options))
        case "choice":
            return LLMatcher.grammar_from_lark(f"start: {' | '.join(map(json.dumps, value))}")
        case "structure":
            writer = _Writer(special_ids)
            start = writer.rule(from_plain(value))
            grammar = "\n".join([f"start: {start}", *writer.lines])
            check_grammar(grammar)
            return LLMatcher.grammar_from_lark(grammar)


class _Writer:
    """Writes parts as Lark expressions; what needs a name of its own becomes a line."""

    def __init__(self, special_ids: Mapping[str, int]) -> None:
        self.lines: list[str] = []
        self._special_ids = special_ids
        texts = sorted(special_ids, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, texts))) if texts else None

    def rule(self, part: Structure) -> str:
        match part:
            case Literal(text):
                return self._literal(text)
            case JsonText(schema):
                return self._named(f"%json {json.dumps(_with_options(schema))}")
            case RegexText(pattern):
                return self._terminal(f"/{regex_to_lark(pattern)}/")
            case TextUntil(ends):
                return self._text_until(ends)
            case Chain(parts):
                return " ".join(map(self.rule, parts)) or '""'
            case OneOf(parts):
                return f"({' | '.join(map(self.rule, parts))})"
            case Repeat():
                return self._repeat(part)
            case Triggered():
                return self._triggered(part)

    def _literal(self, text: str) -> str:
        pieces = []
        place = 0
        for found in self._special.finditer(text) if self._special else ():
            pieces.append(_quoted(text[place : found.start()]))
            pieces.append(f"<[{self._special_ids[found.group()]}]>")
            place = found.end()
        pieces.append(_quoted(text[place:]))
        return " ".join(filter(None, pieces)) or '""'

    def _text_until(self, ends: tuple[str, ...]) -> str:
        texts = [end for end in ends if end not in self._special_ids]
        tokens = [f"<[{self._special_ids[end]}]>" for end in ends if end in self._special_ids]
        if not ends:
            return self._terminal("/(?s:.*)/")
        options = [f"{self._terminal(_without(texts))} {token}" for token in tokens]
        if texts:
            options.append(self._lazy(f"/(?s:.*)({_any_of(texts)})/"))
        return f"({' | '.join(options)})"

    def _repeat(self, part: Repeat) -> str:
        if part.most == 0:
            return '""'
        item = self.rule(part.part)
        most = "" if part.most is None else str(part.most)
        if not part.separator or part.most == 1:
            return f"({item}){{{part.least},{most}}}"
        further = f"({self.rule(Literal(part.separator))} {item})"
        least = max(part.least - 1, 0)
        most = "" if part.most is None else str(part.most - 1)
        several = f"({item} {further}{{{least},{most}}})"
        return several if part.least else f"({several})?"

    def _triggered(self, part: Triggered) -> str:
        texts = [trigger for trigger in part.triggers if trigger not in self._special_ids]
        tail = self._terminal(_without(texts)) if texts else self._terminal("/(?s:.*)/")
        options = []
        for trigger in part.triggers:
            begun = [rest for each in part.parts for rest in [_behind(each, trigger)] if rest]
            if not begun:
                continue
            rests = f"({' | '.join(map(self.rule, begun))})"
            if trigger in self._special_ids:
                options.append(f"{tail} <[{self._special_ids[trigger]}]> {rests}")
            else:
                others = [text for text in texts if text != trigger]
                end = _any_of([trigger])
                barred = f" & ~/(?s:.*({_any_of(others)}).*)/" if others else ""
                options.append(f"{self._lazy(f'/(?s:.*){end}/{barred}')} {rests}")
        most = "" if part.most is None else str(part.most)
        return f"({' | '.join(options)}){{{part.least},{most}}} {tail}"

    def _named(self, body: str) -> str:
        name = f"r{len(self.lines)}"
        self.lines.append(f"{name}: {body}")
        return name

    def _terminal(self, body: str) -> str:
        name = f"T{len(self.lines)}"
        self.lines.append(f"{name}: {body}")
        return name

    def _lazy(self, body: str) -> str:
        name = f"t{len(self.lines)}"
        self.lines.append(f"{name}[lazy]: {body}")
        return name


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""


def _any_of(texts: list[str]) -> str:
    written = (re.escape(text).replace("/", r"\/").replace("\\\n", r"\n") for text in texts)
    return "|".join(written)


def _without(texts: list[str]) -> str:
    return f"/(?s:.*)/ & ~/(?s:.*({_any_of(texts)}).*)/" if texts else "/(?s:.*)/"


def _with_options(schema: Mapping[str, Any] | bool) -> Any:
    asked: Mapping[str, Any] = {}
    if isinstance(schema, Mapping) and OPTIONS in schema:
        asked = {name: schema[OPTIONS][name] for name in SPACE_OPTIONS & schema[OPTIONS].keys()}
        schema = {key: value for key, value in schema.items() if key != OPTIONS}
    written = rewritten_numbers(without_nul(schema))
    if isinstance(written, bool):
        written = {} if written else {"not": {}}
    return {**written, OPTIONS: {**JSON_OPTIONS, **asked}}


def _behind(part: Structure, trigger: str) -> Structure | None:
    """What follows the trigger in a part that begins with it; None where it does not."""
    match part:
        case Literal(text) if text.startswith(trigger):
            return Literal(text[len(trigger) :])
        case Chain((Literal(text), *rest)) if trigger.startswith(text) and text != trigger:
            return _behind(Chain(tuple(rest)), trigger[len(text) :])
        case Chain((first, *rest)):
            behind = _behind(first, trigger)
            return None if behind is None else Chain((behind, *rest))
        case OneOf(parts):
            found = tuple(each for p in parts if (each := _behind(p, trigger)) is not None)
            return OneOf(found) if found else None
        case Repeat(inner, least=least) if least > 0:
            behind = _behind(inner, trigger)
            if behind is None:
                return None
            most = None if part.most is None else part.most - 1
            further = Repeat(Chain((Literal(part.separator), inner)), least - 1, most)
            return Chain((behind, further))
    return None
