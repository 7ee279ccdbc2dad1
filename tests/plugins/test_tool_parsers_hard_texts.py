"""Texts that take parsers long are read with few calls of functions a character."""

import sys

import pytest

from octavo_registry import PluginHost

DICT = "[f(a=1, b={'c': 'Oslo', 'd"
TEXTS = [
    ("pythonic", DICT, "',''{", 1.5),
    ("pythonic", DICT, "-',''[", 2),
    ("pythonic", "[f(a=[", "a[],{a", 5),
    ("pythonic", "[f(a=", "', ", 0.2),
    ("olmo3", "<function_calls>\nf(a=['a", "',''[", 2),
    ("lfm2", "<|tool_call_start|>[f(a=", "', ", 0.2),
    ("llama4_pythonic", '[f(a="(', '{a", "', 0.2),
]


def num_calls(name: str, text: str) -> int:
    """Return how many functions are called to read a text."""
    parser = PluginHost.discover().tool_parsers.load(name)(None)
    parser.stream(None).feed(text)  # patterns are compiled once
    stream = parser.stream(None)
    count = 0

    def called(frame: object, event: str, of: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(called)
    try:
        stream.feed(text)
        stream.finish()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize(("name", "head", "unit", "most"), TEXTS)
def test_hard_text_is_read_with_few_calls_of_functions(name, head, unit, most) -> None:
    text = head + unit * (30_000 // len(unit))
    assert num_calls(name, text) < most * len(text)
