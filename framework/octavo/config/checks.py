"""What the configurations' fields are checked with."""

from __future__ import annotations

from octavo.errors import ConfigError
from octavo.wording import shown

MAX_COUNT = 2**31 - 1
"""Tokens, rows and blocks are counted in 32 bits."""


def check_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Raise unless the value is one of these."""
    if value not in allowed:
        raise ConfigError(f"{name}={value!r} must be one of: {', '.join(allowed)}")


def check_range(name: str, value: object, low: float, high: float = MAX_COUNT) -> None:
    """Raise unless the value is a number in the range; also for NaN."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not low <= value <= high:  # type: ignore[operator]
        raise ConfigError(f"{name}={shown(value)} must be a number from {low} to {high}")
