"""Requests for JSON in words at random: all that shows the keys is that they are listed.

People ask in more ways than anyone can write down. A model that has seen hundreds of wordings takes
the unknown word before the list for a key; one that has seen nonsense around it looks for the list.
"""

from __future__ import annotations

from collections.abc import Sequence

from examples.train_tiny.words import Words

OBJECTS = ("JSON", "JSON", "JSON", "a JSON object", "one JSON object", "JSON only", "JSON please")
FILLERS = ("verb", "word", "word", "word", "noun", "adjective", "more")
LISTS = ("{fields}",) * 6 + ("{shape}", "{schema}")
INTRODUCTIONS = (
    *("the keys", "keys", "the fields", "fields", "the entries", "just", "the", "these:"),
    *("{}", "the {}", "the {}s", "the {} are", "the {}s are", "{} just", "our {} for"),
)
ENDS = ("as fields", "as {}", "as the {}", "as {}s", "for {}s", "alone", "in the {}")
WRAPPERS = ("({})", "[{}]", "<{}>", ": {}", "- {} -")
LABELS = ("Text", "Input", "Sentence", "Note", "Here", "Data")


def framing(words: Words) -> str:
    """A template with the places {text} and one of {fields}, {shape} and {schema}."""
    ask, rng = instruction(words), words.rng
    text = rng.choice(("{text}", "{text}", "{text}", '"{text}"', "'{text}'"))
    if words.chance(0.2):
        text = f"{rng.choice(LABELS) if words.chance(0.6) else _capital(_filler(words))}: {text}"
    space = rng.choice((" ", " ", " ", "\n", "\n\n"))
    if words.chance(0.45):
        return f"{text}{space}{ask}"
    if ask[-1].isalpha() and text[0] == "{":
        ask += rng.choice((":", ":", " -"))
    if words.chance(0.15):  # the text in the middle
        return f"{_fillers(words, 1, 5)}{rng.choice((':', '.', ' -'))} {text}{space}{ask}"
    return f"{ask}{space}{text}"


def instruction(words: Words) -> str:
    """An instruction without the text, as a system message has it."""
    rng = words.rng
    wish = f"{_fillers(words, 0, 5)} {rng.choice(OBJECTS)} {_fillers(words, 0, 3)}"
    listed = _listed(words)
    kind = rng.random()
    if kind < 0.35:  # in sentences of their own
        parts = [wish, f"{_fillers(words, 0, 2)} {listed}"]
        rng.shuffle(parts)
        if words.chance(0.2):
            parts.insert(rng.randint(0, 2), _fillers(words, 2, 6))
        ask = rng.choice((". ", ". ", ": ", ", ", "; ", "\n")).join(map(_capital, parts))
    elif kind < 0.7:
        ask = f"{_fillers(words, 0, 5)} {listed} {_fillers(words, 0, 4)} {rng.choice(OBJECTS)}"
        ask += f" {_fillers(words, 0, 3)}"
    else:
        comma = rng.choice(("", "", ","))
        ask = f"{wish.rstrip()}{comma} {_fillers(words, 0, 2)} {listed} {_fillers(words, 0, 4)}"
    ask = "\n".join(" ".join(line.split()) for line in ask.split("\n"))
    ask = _capital(ask) if words.chance(0.7) else ask
    return ask + rng.choice((".", ".", ":", "?", "", ""))


def _listed(words: Words) -> str:
    """The list of keys with what stands directly around it."""
    rng = words.rng
    listed = rng.choice(LISTS)
    if listed == "{fields}" and words.chance(0.15):
        listed = rng.choice(WRAPPERS).format(listed)
    if words.chance(0.35):
        listed = f"{rng.choice(INTRODUCTIONS).format(_filler(words))} {listed}"
    elif words.chance(0.3):
        listed = f"{listed} {rng.choice(ENDS).format(_filler(words))}"
    return listed


def list_of(words: Words, names: Sequence[str]) -> str:
    """Names as people list them."""
    rng = words.rng
    kind = rng.random()
    if kind < 0.07:
        mark = rng.choice(("-", "*"))
        return "\n" + "\n".join(f"{mark} {name}" for name in names) + "\n"
    if kind < 0.2 or len(names) == 1:
        return rng.choice((", ", ", ", "; ", " / ", " | ", ",", " and ", " + ")).join(names)
    last = rng.choice((" and ", " and ", " and ", ", and ", " & ", " or ", " plus "))
    return ", ".join(names[:-1]) + last + names[-1]


def _fillers(words: Words, least: int, most: int) -> str:
    return " ".join(_filler(words) for _ in range(words.rng.randint(least, most)))


def _filler(words: Words) -> str:
    """A word that means nothing here, in one of the forms that words have."""
    word = "and"
    while word in ("and", "or", "with"):  # "x and y, z" would list x as well
        word = words.made_up() if words.chance(0.4) else words.known(words.rng.choice(FILLERS))
    return word + words.rng.choice(("", "", "", "", "", "ing", "ed", "s", "ly"))


def _capital(text: str) -> str:
    text = text.strip()
    return text[:1].upper() + text[1:]
