"""Chats that ask for JSON about a sentence."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from examples.train_tiny.chat import Chat, Field, Turn, object_schema
from examples.train_tiny.fields import Fact, make_fact, statement
from examples.train_tiny.framing import framing, instruction, list_of
from examples.train_tiny.templates import expand
from examples.train_tiny.words import Value, Words, json_type, load


def extraction(words: Words) -> Chat:
    """A sentence and the wish for some of its facts as JSON."""
    text, facts = _from_domain(words) if words.chance(0.3) else _made_up(words)
    words.rng.shuffle(facts)
    del facts[words.rng.randint(1, max(1, min(5, len(facts)))) :]
    fields = [field for field, _ in facts]
    answer = Turn(
        "assistant",
        json.dumps({field.name: value.json for field, value in facts}, ensure_ascii=False),
    )
    asks = load("extraction")
    in_system = words.chance(0.22)
    if len(fields) > 1 and words.chance(0.6):  # one key alone would not look like a list
        template = instruction(words) if in_system else framing(words)
    else:
        template = words.rng.choice(asks["systems"] if in_system else asks["asks"])
    slots = {
        "fields": _field_list(words, fields),
        "shape": _shape(words, fields),
        "schema": _schema(words, fields),
        "text": text,
    }
    ask = re.sub(r"\n *[.,:?]", "\n", expand(template, words.rng, slots))
    if "{text}" in template:
        return Chat([Turn("user", ask), answer])
    return Chat([Turn("user", text), answer], system=ask)


def _from_domain(words: Words) -> tuple[str, list[tuple[Field, Value]]]:
    domain = words.rng.choice(load("extraction")["domains"])
    values = {slot: words.value(kind) for slot, kind in domain["kinds"].items()}
    text = expand(
        words.rng.choice(domain["says"]),
        words.rng,
        {slot: value.text for slot, value in values.items()},
    )
    facts: dict[str, tuple[Field, Value]] = {}
    for slot, value in values.items():
        key = expand(domain["keys"][slot], words.rng)
        if value.text in text and key not in facts:
            facts[key] = (Field(key, json_type(value.json)), value)
    return text, list(facts.values())


def _made_up(words: Words) -> tuple[str, list[tuple[Field, Value]]]:
    taken: set[str] = set()
    facts: list[Fact] = []
    for _ in range(words.rng.choice((1, 2, 2, 3, 3, 3, 4, 5))):
        facts.append(make_fact(words, taken))
        taken.add(facts[-1].field.name)
    return statement(words, facts), [(fact.field, fact.value) for fact in facts]


def _field_list(words: Words, fields: Sequence[Field]) -> str:
    """The fields' names as prose, sometimes with their types."""
    quote = words.rng.choice(("", "", "", '"', "`"))
    typed = words.rng.choice(("{}", "{}", "{}", "{} ({})", "{}: {}"))
    names = [typed.format(f"{quote}{field.name}{quote}", _kind(field)) for field in fields]
    return list_of(words, names)


def _kind(field: Field) -> str:
    return " or ".join(field.choices) if field.choices else field.type


def _shape(words: Words, fields: Sequence[Field]) -> str:
    """An object that shows the answer's form."""
    if words.chance(0.4):
        return "{" + ", ".join(f'"{field.name}": {_kind(field)}' for field in fields) + "}"
    if words.chance(0.5):
        return json.dumps({field.name: _kind(field) for field in fields})
    examples: dict[str, Any] = {"integer": 0, "number": 0.0, "boolean": True, "array": []}
    return json.dumps({field.name: examples.get(field.type, "...") for field in fields})


def _schema(words: Words, fields: Sequence[Field]) -> str:
    """JSON Schema, with more or less of what people add to it."""
    schema = object_schema(fields)
    if words.chance(0.3):
        del schema["required"]
    if words.chance(0.2):
        schema["additionalProperties"] = False
    return json.dumps(schema)
