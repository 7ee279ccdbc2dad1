"""Structured output: constraints on text, checked, compiled and turned into masks of tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.guided.compile import ReceiptGuide, compile_guide

__all__ = ["ReceiptGuide", "compile_guide"]


def __getattr__(name: str) -> Any:
    """Import what stands here when it is used: ``octavo.guided.schema`` is a library by itself."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from octavo.guided import compile as compiling

    return getattr(compiling, name)
