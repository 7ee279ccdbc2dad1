"""Questions in many wordings about what is in some media, and the right answers."""

from __future__ import annotations

import functools
import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.train_tiny.templates import expand
from examples.train_tiny_omni.clips import Clip
from examples.train_tiny_omni.pictures import Figure
from examples.train_tiny_omni.sounds import Sound

NUMBERS = ("no", "one", "two", "three", "four")
ORDER = (("first", "first", "1st"), ("second", "second", "2nd", "last"))
JSON_SHARE = 0.25
MARKS = " ?.!:,"

Wordings = dict[str, Any]


@functools.cache
def load(name: str) -> Wordings:
    """``questions``, or ``heldout``."""
    data: Wordings = json.loads((Path(__file__).parent / "data" / f"{name}.json").read_text())
    return data


@functools.cache
def held_out_phrases() -> tuple[str, ...]:
    """Lower-case texts that stand in no document of the corpus."""
    data = load("heldout")
    wordings = [*data["json"], *data["json_pictures"], *(text for text, _ in data["about"])]
    for about in ("picture", "pictures", "clip", "sound"):
        wordings += [text for texts in data[about].values() for text in texts]
    pieces = (max(re.split(r"\{\w+\}", text), key=len) for text in wordings)
    return tuple(sorted({piece.strip(MARKS).lower() for piece in pieces}))


def gives_away(text: str) -> bool:
    """Whether a text has a wording of the test."""
    return any(phrase in text.lower() for phrase in held_out_phrases())


@dataclass(frozen=True)
class Question:
    """``value`` is what the answer says in JSON; None: it is plain text."""

    kind: str
    text: str
    answer: str
    value: Any = None


class Facts:
    """What is right about some media: texts by what is asked, and entries of JSON objects."""

    def __init__(self, seen: Sequence[Figure] | Clip | Sound) -> None:
        if isinstance(seen, Clip):
            figure, way = seen.figure, seen.direction
            self.about = "clip"
            self.texts = {
                "direction": f"It moves {way}.",
                "what": capital(f"{figure}."),
                "describe": capital(f"{figure} moves {way}."),
            }
            self.entries = [{**entries_of(figure), "direction": way}]
            self.keys = {"direction": ("direction",), "what": ("shape", "colour")}
        elif isinstance(seen, Sound):
            count, beeps = NUMBERS[seen.count], "beep" if seen.count == 1 else "beeps"
            self.about = "sound"
            self.texts = {
                "count": capital(f"{count} {beeps}."),
                "pitch": capital(f"{seen.pitch}."),
                "describe": capital(f"{count} {seen.pitch} {beeps}."),
            }
            self.entries = [{"count": seen.count, "pitch": seen.pitch}]
            self.keys = {"count": ("count",), "pitch": ("pitch",)}
        elif len(seen) == 1:
            self.about = "picture"
            self.texts = texts_of(seen[0], "", "describe")
            self.entries = [entries_of(seen[0])]
            self.keys = {"colour": ("colour",), "shape": ("shape",)}
        else:
            first, second = seen
            self.about = "pictures"
            self.texts = {"both": f"First {first}, then {second}."}
            self.nth = [texts_of(figure, "nth_", "nth") for figure in seen]
            self.entries = [entries_of(figure) for figure in seen]
            self.keys = {}

    @property
    def whole(self) -> str:
        """What asks for all."""
        return "both" if self.about == "pictures" else "describe"


def texts_of(figure: Figure, prefix: str, name: str) -> dict[str, str]:
    article = "An" if figure.shape[0] in "aeiou" else "A"
    return {
        name: capital(f"{figure}."),
        f"{prefix}colour": capital(f"{figure.colour}."),
        f"{prefix}shape": f"{article} {figure.shape}.",
    }


def entries_of(figure: Figure) -> dict[str, Any]:
    return {"shape": figure.shape, "colour": figure.colour}


def ask(rng: random.Random, facts: Facts, *, held_out: bool = False) -> Question:
    """One question, in a wording of the corpus or of the test."""
    while True:
        found = _in_json(rng, facts, held_out) if rng.random() < JSON_SHARE else None
        found = found or _in_words(rng, facts, held_out)
        if held_out or not gives_away(found.text):
            return found


def _in_words(rng: random.Random, facts: Facts, held_out: bool) -> Question:
    wordings = load("heldout" if held_out else "questions")[facts.about]
    topic = rng.choice(list(wordings))
    number = rng.randrange(2)
    answers = facts.nth[number] if topic.startswith("nth") else facts.texts
    text = expand(rng.choice(wordings[topic]), rng, {"nth": rng.choice(ORDER[number])})
    text = text if held_out else typed(rng, text)
    return Question(f"{facts.about}, in words", text, answers[topic])


def _in_json(rng: random.Random, facts: Facts, held_out: bool) -> Question:
    data = load("heldout" if held_out else "questions")
    template = rng.choice(data["json_pictures" if facts.about == "pictures" else "json"])
    written = expand(template, rng, {"ask": "{ask}", "keys": "{keys}"})
    keys = list(facts.entries[0])
    topic = facts.whole
    if "{keys}" in written:
        if rng.random() < 0.35:
            keys = rng.sample(keys, rng.randint(1, len(keys)))
        elif rng.random() < 0.5:
            rng.shuffle(keys)
    elif facts.keys and rng.random() < 0.4:
        topic = rng.choice(list(facts.keys))
        keys = list(facts.keys[topic])
    spelt = {key: key for key in keys}
    if "colour" in keys and "{keys}" in written and rng.random() < 0.3:
        spelt["colour"] = "color"
    text = written
    if "{ask}" in text:
        asked = expand(rng.choice(load("questions")[facts.about][topic]), rng)
        text = text.replace("{ask}", capital(asked) + rng.choice("??."))
    text = text.replace("{keys}", listed(rng, list(spelt.values())))
    text = text if held_out else typed(rng, text)
    values = [{spelt[key]: entries[key] for key in keys} for entries in facts.entries]
    value = values if facts.about == "pictures" else values[0]
    return Question(f"{facts.about}, in JSON", text, json.dumps(value), value)


def listed(rng: random.Random, keys: Sequence[str]) -> str:
    if rng.random() < 0.25:
        keys = [f'"{key}"' for key in keys]
    if len(keys) == 1:
        return keys[0]
    if rng.random() < 0.3:
        return ", ".join(keys)
    return f"{', '.join(keys[:-1])} and {keys[-1]}"


def typed(rng: random.Random, text: str) -> str:
    """As people type: with words around it, capitals and marks or without."""
    data = load("questions")
    lead, tail = (expand(rng.choice(data[place]), rng) for place in ("lead", "tail"))
    text = f"{lead}{text}" if lead or rng.random() < 0.25 else capital(text)
    text = capital(text) if rng.random() < 0.8 else text.lower()
    if text[-1] in MARKS:
        return text
    return f"{text}{tail}{rng.choice(('?', '?', '?', '.', '', ''))}"


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]
