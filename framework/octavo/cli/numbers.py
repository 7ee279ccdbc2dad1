"""Numbers as people write them on a command line."""

from __future__ import annotations

import re
from typing import Final

_UNITS: Final = {
    **dict(zip("kmgt", (10**3, 10**6, 10**9, 10**12), strict=True)),
    **dict(zip("KMGT", (2**10, 2**20, 2**30, 2**40), strict=True)),
}


def whole_number(text: str) -> int:
    """Read ``8192``, ``8k`` (8,000), ``8K`` (8,192), ``1.5m`` or ``2G``; else a ValueError."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)([kmgtKMGT])\s*", text, re.ASCII)
    if found is None:
        return int(text)
    whole, _, decimals = found[1].partition(".")
    number, rest = divmod(int(whole + decimals) * _UNITS[found[2]], int(10 ** len(decimals)))
    if rest:
        raise ValueError(f"{text} is no whole number")
    return number
