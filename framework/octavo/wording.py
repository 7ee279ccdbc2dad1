"""Words that messages share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

MAX_LISTED = 10


def counted(number: int, one: str, many: str | None = None) -> str:
    """Return ``1 token`` or ``2,048 tokens``; ``many`` is for words that take more than an s."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def listed(names: Sequence[str]) -> str:
    """Return the first names, each on one line whatever is in it, and how many more there are."""
    first = ", ".join(" ".join(name.split())[:200] for name in names[:MAX_LISTED])
    return first if len(names) <= MAX_LISTED else f"{first} and {len(names) - MAX_LISTED:,} more"


def likely_meant(name: str, known: Iterable[str]) -> list[str]:
    """Return those of the known names, such as options, that are probably meant, the closest first.

    A name that shares words with another may mean something else: each other word must be like its
    counterpart, too.
    """
    from difflib import SequenceMatcher  # only needed on the way to an error

    def likeness(one: str, other: str) -> float:
        return SequenceMatcher(None, one, other).ratio()

    given = re.findall(r"[^-_.]+", name.lower())
    found: list[tuple[float, str]] = []
    for each in sorted(set(known)):
        words = re.findall(r"[^-_.]+", each.lower())
        whole = likeness("".join(given), "".join(words))
        is_near = whole >= 0.9
        if len(words) == len(given):
            is_near = all(
                likeness(a, b) >= 0.65
                or (min(len(a), len(b)) > 2 and (a.startswith(b) or b.startswith(a)))
                for a, b in zip(given, words, strict=True)
            )
        if is_near:
            found.append((whole, each))
    return [each for _, each in sorted(found, key=lambda one: -one[0])[:3]]


def shown(value: object) -> str:
    """A value on one line of a message."""
    try:
        return " ".join(repr(value).split())[:80]
    except ValueError:  # Python prints no integer of many thousand digits
        return f"<{type(value).__name__}>"
