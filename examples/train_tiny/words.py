"""Words, names and numbers to write documents with: half from lists, half made up on the spot."""

from __future__ import annotations

import functools
import json
import random
from dataclasses import dataclass
from typing import Any

from examples.train_tiny.nonce import DATA, LETTERS, made_up

MAX_IN_WORDS = 12
STRING_KINDS = (
    *("person", "person", "person", "first", "city", "city", "country", "company"),
    *("phrase", "phrase", "heading", "code", "code", "email", "file", "date", "date"),
    *("clock", "clock", "job", "food", "noun"),
)
INTEGER_KINDS = ("small", "count", "count", "age", "year")


@functools.cache
def load(name: str) -> Any:
    return json.loads((DATA / f"{name}.json").read_text())


@functools.cache
def word_lists() -> dict[str, list[str]]:
    return {name: words.split() for name, words in load("words").items()}


@dataclass(frozen=True)
class Value:
    """A value as a sentence says it, and as JSON has it."""

    text: str
    json: Any


class Words:
    """Draws values by kind: ``value("person")``, ``value("small")``, ..."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def known(self, kind: str) -> str:
        words = word_lists()[kind]
        return words[int(self.rng.random() * len(words))]

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def made_up(self) -> str:
        return made_up(self.rng)

    def word(self, kind: str) -> str:
        """A word that serves as a noun, verb or adjective."""
        which = self.rng.random()
        if which < 0.35:
            return self.known(kind)
        return self.known("more") if which < 0.5 else self.made_up()

    def name(self, kind: str) -> str:
        """A capitalised word."""
        return self.known(kind) if self.rng.random() < 0.35 else self.made_up().capitalize()

    def value(self, kind: str) -> Value:
        """One of the kinds below: person, first, country, ..."""
        drawn: str | Value = getattr(self, kind)()
        return drawn if isinstance(drawn, Value) else Value(drawn, drawn)

    def person(self) -> str:
        first, last = self.name("first"), self.name("last")
        if self.chance(0.1):
            first = f"{self.known('title')} {first}"
        elif self.chance(0.08):
            first = f"{first} {self.name('first')}"
        return f"{first} {last}"

    def first(self) -> str:
        return self.name("first")

    def last(self) -> str:
        return self.name("last")

    def food(self) -> str:
        return self.known("food")

    def job(self) -> str:
        return self.known("job")

    def language(self) -> str:
        return self.known("language")

    def noun(self) -> str:
        return self.word("noun")

    def country(self) -> str:
        return self.rng.choice(list(load("capitals")))

    def city(self) -> str:
        if self.chance(0.15):
            return self.rng.choice(list(load("capitals").values()))
        city = self.name("city")
        if self.chance(0.12):
            city = f"{self.rng.choice(('New', 'San', 'Port', 'Old', 'Saint', 'East'))} {city}"
        elif self.chance(0.15):
            suffix = self.rng.choice(
                ("Bay", "Falls", "Harbour", "Hill", "Island", "Park", "Cross", "Green")
            )
            city = f"{city} {suffix}"
        return city

    def company(self) -> str:
        name = self.name("company")
        return f"{name} {self.known('suffix')}" if self.chance(0.5) else name

    def phrase(self) -> str:
        """A thing in one to three words."""
        before = ("adjective", "noun", "noun")[: self.rng.choice((0, 1, 1, 1, 2))]
        return " ".join(self.word(kind) for kind in (*before, "noun"))

    def heading(self) -> str:
        """A title in one to four words, capitalised."""
        words = [
            self.word(self.rng.choice(("adjective", "noun", "verb")))
            for _ in range(self.rng.randint(1, 3))
        ]
        heading = " ".join(word.capitalize() for word in words)
        return f"The {heading}" if self.chance(0.3) else heading

    def text(self) -> str:
        """A short message, of any words."""
        kinds = ("noun", "verb", "adjective", "word", "word", "word")
        words = [
            self.known(self.rng.choice(kinds)) if self.chance(0.8) else self.made_up()
            for _ in range(self.rng.randint(2, 7))
        ]
        return " ".join(words)

    def code(self) -> str:
        """An identifier such as "TK-482" or "b7f3"."""
        letters = "".join(self.rng.choices(LETTERS, k=self.rng.randint(1, 4)))
        digits = "".join(self.rng.choices("0123456789", k=self.rng.randint(1, 5)))
        separator = self.rng.choice(("-", "", "_", "-", "/"))
        return f"{letters.upper() if self.chance(0.75) else letters}{separator}{digits}"

    def email(self) -> str:
        user, host = self.name("first").lower(), self.word("noun")
        if self.chance(0.4):
            user += self.rng.choice("._-") + self.name("last").lower()
        return f"{user}@{host}.{self.rng.choice(('com', 'org', 'net', 'io', 'eu'))}"

    def file(self) -> str:
        name = self.word("noun") + (f"_{self.word('noun')}" if self.chance(0.4) else "")
        return f"{name}.{self.rng.choice(('txt', 'pdf', 'csv', 'png', 'json', 'mp3', 'zip'))}"

    def phone(self) -> str:
        return f"{self.rng.randint(100, 999)}-{self.rng.randint(1000, 9999)}"

    def date(self) -> str:
        year, month, day = self.year(), self.rng.randint(1, 12), self.rng.randint(1, 28)
        style = self.rng.random()
        if style < 0.5:
            return f"{year.json}-{month:02}-{day:02}"
        return f"{day} {self.known('month')}" + (f" {year.json}" if style < 0.75 else "")

    def day(self) -> str:
        return self.known("weekday") if self.chance(0.6) else self.rng.choice(("today", "tomorrow"))

    def clock(self) -> str:
        return f"{self.rng.randint(0, 23):02}:{self.rng.randint(0, 59):02}"

    def small(self) -> Value:
        number = self.rng.randint(1, MAX_IN_WORDS)
        return Value(in_words(number) if self.chance(0.3) else str(number), number)

    def count(self) -> Value:
        number = self.rng.randint(1, 10 ** self.rng.choice((1, 2, 2, 3, 3, 4, 5)))
        return Value(str(number), number)

    def age(self) -> Value:
        number = self.rng.randint(1, 99)
        return Value(str(number), number)

    def year(self) -> Value:
        number = self.rng.randint(1700, 2100)
        return Value(str(number), number)

    def decimal(self) -> Value:
        whole = self.rng.randint(0, 10 ** self.rng.choice((1, 2, 3)))
        tenths = self.rng.choice(("", str(self.rng.randint(0, 9))))
        number = float(f"{whole}.{tenths}{self.rng.randint(1, 9)}")
        return Value(str(number), number)

    def degrees(self) -> Value:
        number = self.rng.randint(-20, 45)
        return Value(str(number), number)

    def colour(self) -> str:
        return self.rng.choice(word_lists()["colour"])

    def items(self) -> Value:
        kind = self.rng.choice(("food", "noun", "colour", "first"))
        count = self.rng.randint(2, 4)
        draw = {"colour": self.colour, "first": self.first}.get(kind, lambda: self.word(kind))
        words = [draw() for _ in range(count)]
        return Value(", ".join(words[:-1]) + f" and {words[-1]}", words)


def in_words(number: int) -> str:
    """A number from 1 to ``MAX_IN_WORDS`` as a word."""
    return word_lists()["number"][number - 1]


def json_type(value: Any) -> str:
    """The JSON Schema type of a value."""
    names = {bool: "boolean", int: "integer", float: "number", list: "array"}
    return names.get(type(value), "string")
