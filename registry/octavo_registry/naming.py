"""What an error says about a name that is not known."""

from __future__ import annotations

from collections.abc import Iterable


def near_matches(name: str, known: Iterable[str]) -> str:
    """Return "close: [...]", or "known: [...]" when nothing is close; the tail of an error."""
    from difflib import get_close_matches  # only needed on the way to an error

    names = sorted(known)
    by_lower = {candidate.lower(): candidate for candidate in names}
    close = get_close_matches(name.lower(), by_lower, n=3, cutoff=0.6)
    return f"close: {[by_lower[match] for match in close]}" if close else f"known: {names}"
