"""Words that nobody knows, from so many that a model cannot learn them and has to copy."""

from __future__ import annotations

import functools
import json
import random
import re
from pathlib import Path

DATA = Path(__file__).parent / "data"
LETTERS = "abcdefghijklmnopqrstuvwxyz"
SOURCES = ("words", "smalltalk", "facts", "clauses", "tools", "extraction", "stories")
LONGEST = 14


def made_up(rng: random.Random) -> str:
    """Pieces of words, syllables, or now and then letters at random."""
    kind = rng.random()
    if kind < 0.08:
        return "".join(rng.choices(LETTERS, k=rng.randint(2, 8)))
    return _blend(rng) if kind < 0.7 else _syllables(rng)


def neighbour(rng: random.Random, word: str) -> str:
    """A word that begins or ends as this one does, and must yet be told apart from it."""
    at = len(word) // 2
    other = _piece(rng)
    return word[:at] + other if rng.random() < 0.5 else other + word[at:]


def _blend(rng: random.Random) -> str:
    """One to three pieces: among their tokens are those that are elsewhere whole words."""
    word = "".join(_piece(rng) for _ in range(rng.choice((1, 2, 2, 2, 2, 3))))
    return word[:LONGEST]


def _piece(rng: random.Random) -> str:
    """The beginning, the end, or all of a word of the corpus."""
    words = _all_words()
    word = words[int(rng.random() * len(words))]
    size, kind = rng.randint(2, 5), rng.random()
    if kind < 0.15:
        return word[:7]
    return word[:size] if kind < 0.55 else word[-size:]


def _syllables(rng: random.Random) -> str:
    onsets, vowels, codas = _sounds()
    parts: list[str] = []
    for _ in range(rng.choice((1, 2, 2, 2, 3))):
        if rng.random() < 0.85:
            parts.append(rng.choice(onsets))
        parts.append(rng.choice(vowels))
        if rng.random() < 0.4:
            parts.append(rng.choice(codas))
    return "".join(parts)


@functools.cache
def _all_words() -> list[str]:
    """Each word that the corpus is written with, in one order on any machine."""
    texts = ((DATA / f"{name}.json").read_text() for name in SOURCES)
    found = {word for text in texts for word in re.findall("[a-z]{2,}", text.lower())}
    return sorted(found)


@functools.cache
def _sounds() -> tuple[list[str], list[str], list[str]]:
    lists = json.loads((DATA / "words.json").read_text())
    return lists["onset"].split(), lists["vowel"].split(), lists["coda"].split()
