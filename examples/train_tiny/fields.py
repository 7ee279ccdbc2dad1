"""Fields that are made up: a key, a value, and how people say that the one has the other."""

from __future__ import annotations

import re
from dataclasses import dataclass

from examples.train_tiny.chat import Field
from examples.train_tiny.nonce import neighbour
from examples.train_tiny.templates import expand
from examples.train_tiny.words import INTEGER_KINDS, STRING_KINDS, Value, Words, json_type, load

FORMS = {"string": 46, "integer": 22, "number": 8, "boolean": 8, "array": 4, "choice": 12}
"""Kinds of values, in percent."""
NEIGHBOURS = 0.12
"""How many keys begin or end as another one of the same document does."""
GLUES = (" ", ": ", " - ", ", where ", " is new, ", " has this: ", " came in, ", ". ")
LINKS = (", ", ", ", "; ", ". ", " and ")
BEGINNINGS = ("the", "its", "it", "there", "his", "her")


@dataclass(frozen=True)
class Fact:
    """A field with its value. ``spoken`` is the key as words: "start time" for startTime."""

    field: Field
    spoken: str
    is_plural: bool
    value: Value

    @property
    def form(self) -> str:
        """Which list of clauses says it."""
        if self.field.choices:
            return "choice"
        if self.field.type == "boolean":
            return "true" if self.value.json else "false"
        return "number" if self.field.type == "integer" else self.field.type


def make_fact(words: Words, taken: set[str], noun: str = "") -> Fact:
    """A field whose key is not in ``taken``, with a value; a ``noun`` becomes a text's key."""
    rng = words.rng
    kind = "string" if noun else rng.choices(list(FORMS), list(FORMS.values()))[0]
    choices: tuple[str, ...] = ()
    if kind == "string":
        value = words.value(rng.choice(STRING_KINDS))
    elif kind == "integer":
        value = words.value(rng.choice(INTEGER_KINDS))
    elif kind == "number":
        value = words.value("decimal")
    elif kind == "array":
        value = words.value("items")
    elif kind == "boolean":
        value = Value("", words.chance(0.5))
    else:
        source = rng.choice(("adjective", "adjective", "noun", "verb"))
        choices = tuple({words.word(source): None for _ in range(rng.randint(2, 5))})
        value = Value(choice := rng.choice(choices), choice)
    plural = kind == "array" or (kind == "integer" and words.chance(0.4))
    key, spoken = _key_of(words, noun) if noun else _key(words, taken, plural=plural)
    while key in taken:
        key, spoken = _key(words, taken, plural=plural)
    return Fact(Field(key, json_type(value.json), choices), spoken, plural, value)


def clause(words: Words, fact: Fact, lists: dict[str, list[str]]) -> str:
    """One way of saying the fact, out of clauses by form."""
    templates = lists.get(fact.form) or lists["string"]
    plural = fact.spoken if fact.spoken.endswith("s") else fact.spoken + "s"
    template = words.rng.choice(templates)
    for _ in range(20):  # "the passengers is 3" is said by nobody
        if not fact.is_plural or "{key}" not in template:
            break
        template = words.rng.choice(templates)
    slots = {"key": fact.spoken, "keys": plural, "value": fact.value.text}
    if "{verb}" in template:
        slots["verb"] = words.word("verb")
    return expand(template, words.rng, slots)


def statement(words: Words, facts: list[Fact]) -> str:
    """A sentence or more from which the facts follow."""
    clauses, rng = load("clauses"), words.rng
    said = [clause(words, fact, clauses["statements"]) for fact in facts]
    opening = rng.random()
    if opening < 0.2:
        text = ""
    elif opening < 0.35 and facts[0].form == "string":  # the first fact is what it is all about
        begin = rng.choice(("The", "The", "This", "Our"))
        text = f"{begin} {facts[0].spoken} {facts[0].value.text} "
        del said[0]
    else:
        text = _subject(words) + rng.choice(GLUES)
    for index, part in enumerate(said):
        if index:
            text += " and " if index == len(said) - 1 and words.chance(0.6) else rng.choice(LINKS)
        # A value that begins a sentence keeps its case, since it is to be copied.
        starts = (not text or text.endswith(". ")) and part.partition(" ")[0] in BEGINNINGS
        text += part[0].upper() + part[1:] if starts else part
    return with_articles(text.rstrip()) + rng.choice((".", ".", ".", "", "!"))


def _subject(words: Words) -> str:
    slots = {kind: words.word(kind) for kind in ("adjective", "noun")}
    slots["name"] = words.name("city")
    return expand(words.rng.choice(load("clauses")["subjects"]), words.rng, slots)


def with_articles(text: str) -> str:
    """ "a apple" made "an apple"."""
    return re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", text)


def _key(words: Words, taken: set[str], *, plural: bool) -> tuple[str, str]:
    """An identifier, and how it is spoken."""
    rng = words.rng
    parts = [words.word("noun")]
    if taken and words.chance(NEIGHBOURS):
        near = rng.choice(sorted(taken)).rpartition("_")[-1].lower()
        parts = [neighbour(rng, near)]
    if words.chance(0.4):
        parts.insert(0, words.word(rng.choice(("noun", "adjective", "adjective", "verb"))))
    if plural and not parts[-1].endswith("s"):
        parts[-1] += "s"
    spoken = " ".join(parts)
    if words.chance(0.12):
        return parts[0] + "".join(part.capitalize() for part in parts[1:]), spoken
    return "_".join(parts), spoken


def _key_of(words: Words, noun: str) -> tuple[str, str]:
    """The key that tells which ``noun`` is meant."""
    ends = ("", "", "", "", "_name", "_id", "_code", f"_{words.word('noun')}")
    key = noun + words.rng.choice(ends)
    return key, key.replace("_", " ")
