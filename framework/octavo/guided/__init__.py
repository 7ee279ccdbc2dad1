"""Structured output: constraints on text, checked, compiled and turned into masks of tokens."""

from octavo.guided.compile import ReceiptGuide, compile_guide

__all__ = ["ReceiptGuide", "compile_guide"]
