"""The library, imported without torch: seconds and 200 MB a process for one of its forms of masks.

It asks for torch where it is imported, and does without where there is none.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def _without_torch() -> Iterator[None]:
    if "torch" in sys.modules:
        yield
        return
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["torch"]


with _without_torch():
    from lmformatenforcer import (  # type: ignore[import-untyped]
        CharacterLevelParser,
        TokenEnforcer,
        TokenEnforcerTokenizerData,
    )

__all__ = ["CharacterLevelParser", "TokenEnforcer", "TokenEnforcerTokenizerData"]
