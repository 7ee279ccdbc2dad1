from __future__ import annotations

import time

import pytest

from benchmarks import parsers as hard
from octavo_registry import PluginHost, ReasoningParser, ToolParser

HOST = PluginHost.discover()
NUM_CHARACTERS = 2**14
MOST_GROWTH = 3.0
"""For twice the text: 2 is linear, 4 is quadratic."""
MOST_AS_PLAIN = 6.0
"""Whole, against as many plain characters one by one: half a second for a megabyte."""


def seconds(parser: ToolParser | ReasoningParser, text: str) -> float:
    stream = parser.stream(None)
    begin = time.process_time()
    for character in text:
        stream.feed(character)
    stream.finish()
    return time.process_time() - begin


def growth(parser: ToolParser | ReasoningParser, head: str, unit: str) -> float:
    once, twice = (head + unit * (n * NUM_CHARACTERS // len(unit)) for n in (1, 2))
    return seconds(parser, twice) / seconds(parser, once)


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "name"),
    [("tool", name) for name in HOST.tool_parsers.names()]
    + [("reasoning", name) for name in HOST.reasoning_parsers.names()],
)
def test_twice_the_characters_take_twice_the_time(kind: str, name: str) -> None:
    registry = HOST.tool_parsers if kind == "tool" else HOST.reasoning_parsers
    parser = registry.load(name)(None)
    sample = parser.samples[0]
    begun = sample[: len(sample) * 2 // 3]
    tags = [("", sample[:-1]), ("", sample[0])]
    for head, unit in (*tags, ("", "a"), (begun, "a"), (begun, "["), (begun, " ")):
        growths = (growth(parser, head, unit) for _ in range(5))  # the machine has other work
        assert any(each < MOST_GROWTH for each in growths), (head, unit)


@pytest.mark.long
@pytest.mark.parametrize("name", HOST.tool_parsers.names())
def test_the_hardest_text_takes_little_more_than_plain_characters_one_by_one(name: str) -> None:
    parser = HOST.tool_parsers.load(name)(None)
    hardest = max(hard.hard_texts(parser), key=lambda text: hard.seconds(parser, *text, 700, 10**9))
    ratios = (
        hard.seconds(parser, *hardest, 100_000, 10**9) / hard.seconds(parser, "", "a", 100_000, 1)
        for _ in range(5)
    )
    assert any(each < MOST_AS_PLAIN for each in ratios), hardest
