"""Words that messages share."""

from __future__ import annotations


def counted(number: int, one: str, many: str | None = None) -> str:
    """Return ``1 token`` or ``2,048 tokens``; ``many`` is for words that take more than an s."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"
