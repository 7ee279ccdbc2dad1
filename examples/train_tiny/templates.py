"""Templates: "(hi|hello)( there|), I am {name}" stands for four sentences about any name."""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_PIECES = re.compile(r"\\.|[()|]|\{\w+\}|[^()|{}\\]+")


@dataclass(frozen=True)
class Slot:
    name: str


@dataclass(frozen=True)
class Choice:
    options: list[list[str | Slot | Choice]] = field(default_factory=list)


@functools.cache
def parse(source: str) -> Choice:
    """The template as a tree; "\\|" and the like are plain characters."""
    open_choices = [Choice([[]])]
    for piece in _PIECES.findall(source):
        options = open_choices[-1].options
        if piece == "(":
            options[-1].append(inner := Choice([[]]))
            open_choices.append(inner)
        elif piece == ")":
            open_choices.pop()
        elif piece == "|":
            options.append([])
        elif piece[0] == "{":
            options[-1].append(Slot(piece[1:-1]))
        else:
            options[-1].append(piece[1:] if piece[0] == "\\" else piece)
    if len(open_choices) != 1:
        raise ValueError(f"unbalanced parentheses in {source!r}")
    return open_choices[0]


def expand(source: str, rng: random.Random, slots: Mapping[str, str] | None = None) -> str:
    """Draw one of the sentences; each ``{name}`` becomes ``slots[name]``."""
    parts: list[str] = []
    _write(parse(source), rng, {} if slots is None else slots, parts)
    return "".join(parts)


def slot_names(source: str) -> set[str]:
    return set(re.findall(r"\{(\w+)\}", source))


def _write(choice: Choice, rng: random.Random, slots: Mapping[str, str], parts: list[str]) -> None:
    options = choice.options
    for part in options[int(rng.random() * len(options))]:
        if isinstance(part, str):
            parts.append(part)
        elif isinstance(part, Slot):
            parts.append(slots[part.name])
        else:
            _write(part, rng, slots, parts)
