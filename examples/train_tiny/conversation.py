"""Chats in words alone: small talk, capitals, names, small sums, and what the model can't know."""

from __future__ import annotations

import re

from examples.train_tiny.chat import Chat, Turn
from examples.train_tiny.templates import expand
from examples.train_tiny.words import MAX_IN_WORDS, Words, in_words, load

MAX_TERM = 20
MAX_FACTOR = 10
COPIED_KINDS = (
    *("text", "text", "phrase", "person", "code", "count", "decimal", "date"),
    *("email", "noun", "city", "heading", "items", "file"),
)


def smalltalk(words: Words) -> Chat:
    intent = words.rng.choice(list(load("smalltalk").values()))
    slots = {"number": str(words.rng.randint(11, 9999)), "big": str(words.rng.randint(50, 9999))}
    ask = _as_typed(words, _tidy(expand(words.rng.choice(intent["ask"]), words.rng, slots)))
    return _exchange(ask, expand(words.rng.choice(intent["answer"]), words.rng))


def capital(words: Words) -> Chat:
    country = words.country()
    slots = {"country": country, "capital": load("capitals")[country]}
    about = "capital" if words.chance(0.85) else "country"
    ask = _asked(words, about, slots)
    if words.chance(0.15):
        ask = ask.lower()
    return _exchange(ask, _fact(words, f"{about}_answer", slots))


def introduction(words: Words) -> Chat:
    """A name is told, and later asked for."""
    slots = {"name": words.value(words.rng.choice(("first", "first", "person"))).text}
    chat = _exchange(_asked(words, "introduce", slots), _fact(words, "introduced", slots))
    if words.chance(0.6):
        if words.chance(0.5):
            chat.turns += words.rng.choice((smalltalk, capital))(words).turns
        question = _as_typed(words, _fact(words, "ask_name", slots).rstrip("?"))
        chat.turns += _exchange(question, _fact(words, "name_told", slots)).turns
    return chat


def repeat(words: Words) -> Chat:
    """Copying, the skill that all others need."""
    text = words.value(words.rng.choice(COPIED_KINDS)).text
    if words.chance(0.3):
        text += f" {words.value(words.rng.choice(COPIED_KINDS)).text}"
    return _exchange(_asked(words, "repeat", {"text": text}), text)


def arithmetic(words: Words) -> Chat:
    rng = words.rng
    kind = rng.choice(("sums", "sums", "differences", "products"))
    limit = MAX_FACTOR if kind == "products" else MAX_TERM
    a, b = rng.randint(0, limit), rng.randint(0, limit)
    if kind == "differences":
        a, b = max(a, b), min(a, b)
    result = {"sums": a + b, "differences": a - b, "products": a * b}[kind]
    spoken = {"sums": "plus", "differences": "minus", "products": "times"}[kind]
    write = in_words if words.chance(0.2) and min(a, b) >= 1 and max(a, b) <= MAX_IN_WORDS else str
    slots = {"a": write(a), "b": write(b)}
    return _exchange(_asked(words, kind, slots), f"{a} {spoken} {b} is {result}.")


def counting(words: Words) -> Chat:
    n = words.rng.randint(2, 20)
    text = str(n) if n > MAX_IN_WORDS or words.chance(0.7) else in_words(n)
    return _exchange(_asked(words, "count", {"n": text}), ", ".join(map(str, range(1, n + 1))))


def unknown(words: Words) -> Chat:
    """A question that no model of this size can answer, or a remark."""
    about = "unknown" if words.chance(0.7) else "remark"
    slots = {
        **{name: words.word(name) for name in ("adjective", "noun", "verb")},
        "noun2": words.word("noun"),
        "city": words.name("city"),
        "person": words.person(),
        "job": words.known("job"),
    }
    ask = _asked(words, about, slots)
    ask = ask.rstrip("?") if words.chance(0.3) else ask
    return _exchange(ask, _fact(words, f"{about}_answer", slots))


def plain_text(words: Words) -> str:
    """Text without a chat around it, to be continued from any point."""
    rng = words.rng
    if words.chance(0.7):
        (country, city), (country2, city2) = rng.sample(list(load("capitals").items()), 2)
        slots = {"country": country, "capital": city, "country2": country2, "capital2": city2}
        return _capitalised(_fact(words, "plain", slots))
    if words.chance(0.5):
        chat = rng.choice((smalltalk, capital, arithmetic))(words)
        return f"{chat.turns[0].content} {chat.turns[1].content}"
    return expand(
        rng.choice(load("stories")), rng, {"name": words.name("first"), "city": words.name("city")}
    )


def _exchange(ask: str, answer: str) -> Chat:
    return Chat([Turn("user", ask), Turn("assistant", answer)])


def _fact(words: Words, name: str, slots: dict[str, str]) -> str:
    return expand(words.rng.choice(load("facts")[name]), words.rng, slots)


def _asked(words: Words, name: str, slots: dict[str, str]) -> str:
    ask = _tidy(_fact(words, name, slots))
    return _capitalised(ask) if words.chance(0.6) else ask


def _tidy(text: str) -> str:
    """Without the spaces that empty alternatives leave."""
    return re.sub(" +", " ", text).strip()


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]


def _as_typed(words: Words, ask: str) -> str:
    """As people type: with or without capitals and punctuation, with fillers and slips."""
    rng, slips = words.rng, load("slips")
    if words.chance(0.15):
        ask = rng.choice(slips["prefixes"]) + ask
    if words.chance(0.12):
        ask += rng.choice(slips["suffixes"])
    if words.chance(0.2):  # another word that means about the same
        group = rng.choice(slips["alike"])
        pattern = rf"\b({group.replace(' ', '|')})\b"
        ask = re.sub(pattern, rng.choice(group.split()), ask, count=1)
    if words.chance(0.2):  # a word that adds nothing
        parts = ask.split(" ")
        parts.insert(rng.randint(0, len(parts)), rng.choice(slips["fillers"]))
        ask = " ".join(parts)
    if words.chance(0.08):  # a small word is left out
        ask = re.sub(f" {rng.choice(slips['small_words'])} ", " ", ask, count=1)
    if words.chance(0.08) and len(ask) > 6:  # a slip of the finger
        at = rng.randrange(1, len(ask) - 1)
        dropped = ask[:at] + ask[at + 1 :]
        swapped = ask[: at - 1] + ask[at] + ask[at - 1] + ask[at + 1 :]
        ask = rng.choice((dropped, swapped))
    case = rng.random()
    if case < 0.6:
        ask = _capitalised(ask)
    elif case < 0.8:
        ask = ask.lower()
    elif case < 0.83:
        ask = ask.upper()
    return ask + rng.choice(("", "", "?", "?", ".", "!"))
