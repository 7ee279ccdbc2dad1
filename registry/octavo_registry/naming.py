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
