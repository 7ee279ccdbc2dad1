"""What an error says about a name that is not known."""

from __future__ import annotations

from collections.abc import Iterable


def near_matches(name: str, known: Iterable[str]) -> str:
    """Return the tail of an error: "close: [...]", else all that is known."""
    from difflib import get_close_matches  # only needed on the way to an error

    names = sorted(known)
    if not names:
        return "there are none"
    by_lower = {candidate.lower(): candidate for candidate in names}
    close = get_close_matches(name.lower(), by_lower, n=3, cutoff=0.6)
    return f"close: {[by_lower[match] for match in close]}" if close else f"known: {names}"


def misspelt(name: str, known: Iterable[str]) -> str | None:
    """The known name that this one is most likely a slip of; None: it is another name.

    A slip is one letter left out, added, changed or swapped with its neighbour, two of them in
    eight letters and more, or another way to write the words (``maxTokens`` for ``max_tokens``).
    """
    given = _letters(name)
    best: tuple[int, str] | None = None
    for candidate in sorted(known):
        wanted = _letters(candidate)
        most = 0 if len(wanted) < 3 else 1 if len(wanted) < 8 else 2
        # A slip changes two of the letters that there are at most.
        if abs(len(given) - len(wanted)) > most or len({*given} ^ {*wanted}) > 2 * most:
            continue
        slips = _num_slips(given, wanted, most)
        if slips <= most and (best is None or slips < best[0]):
            best = slips, candidate
    return None if best is None else best[1]


def _letters(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def _num_slips(given: str, wanted: str, most: int) -> int:
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
