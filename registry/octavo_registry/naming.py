"""Which known name was meant by one that is not known, and what an error says of it."""

from __future__ import annotations

import re
from collections.abc import Iterable

MOST_MEANT = 3
"""Names that an error suggests."""
LONGEST = 100
"""A longer name is no slip of any: clients may send megabytes."""


def close_or_known(name: str, known: Iterable[str]) -> str:
    """Return the tail of an error: "close: [...]", else all that is known."""
    names = sorted(known)
    if not names:
        return "there are none"
    close = meant(name, names)
    return f"close: {close}" if close else f"known: {names}"


def meant(name: str, known: Iterable[str], *, surely: bool = False) -> list[str]:
    """The known names that were probably meant, the closest first; ``surely``: only by a slip.

    A slip is one letter left out, added, changed or swapped with its neighbour, two of them in
    eight letters and more, or another way to write the words (``maxTokens`` for ``max_tokens``).
    Otherwise each word may be another form of its counterpart (``mem`` for ``memory``), and of
    four words and more one may be left out or added. What shares words with another name may still
    mean something else: a word that is like none is no slip.
    """
    if len(name) > LONGEST:
        return []
    given, words = _letters(name), _words(name)
    found = []
    for candidate in sorted(set(known)):
        wanted = _letters(candidate)
        is_meant = _is_slip(given, wanted) or (not surely and _are_like(words, _words(candidate)))
        if is_meant:
            found.append((_num_slips(given, wanted), candidate))
    return [candidate for _, candidate in sorted(found)[:MOST_MEANT]]


def _letters(name: str) -> str:
    return re.sub(r"[-_./]", "", name).lower()


def _words(name: str) -> list[str]:
    """Words of a name: between signs, or from a capital on (``minItems``)."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return re.findall(r"[^-_./]+", apart.lower())


def _are_like(some: list[str], others: list[str]) -> bool:
    """Whether these are the same words, in other forms, or but for one of four and more."""
    if len(some) == len(others):
        return all(_is_form(one, other) for one, other in zip(some, others, strict=True))
    fewer, more = sorted((some, others), key=len)
    if len(more) < 4 or len(more) - len(fewer) != 1:
        return False
    return any(fewer == more[:place] + more[place + 1 :] for place in range(len(more)))


def _is_form(one: str, other: str) -> bool:
    """Whether a word is a slip of the other, its beginning, or has another end."""
    shorter = min(len(one), len(other))
    stem = max(3, shorter - 1)
    return one == other or _is_slip(one, other) or (one[:stem] == other[:stem] and shorter >= stem)


def _is_slip(given: str, wanted: str) -> bool:
    most = 0 if len(wanted) < 3 else 1 if len(wanted) < 8 else 2
    # A slip changes two of the letters that there are at most.
    if abs(len(given) - len(wanted)) > most or len({*given} ^ {*wanted}) > 2 * most:
        return False
    return _num_slips(given, wanted, most) <= most


def _num_slips(given: str, wanted: str, most: int = 1_000) -> int:
    """The least number of slips between two words (optimal string alignment), if not above most."""
    before: list[int] = []
    row = list(range(len(wanted) + 1))
    for i, letter in enumerate(given, start=1):
        above, before, row = before, row, [i]
        for j, other in enumerate(wanted, start=1):
            least = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != other))
            swapped = i > 1 and j > 1 and letter == wanted[j - 2] and given[i - 2] == other
            row.append(min(least, above[j - 2] + 1) if swapped else least)
        if min(row) > most < min(before):
            break
    return row[-1]
