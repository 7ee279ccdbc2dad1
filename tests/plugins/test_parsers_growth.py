from __future__ import annotations

import time

import pytest

from octavo_registry import PluginHost, ReasoningParser, ToolParser

HOST = PluginHost.discover()
NUM_CHARACTERS = 2**14
MOST_GROWTH = 3.0
"""For twice the text: 2 is linear, 4 is quadratic."""


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


@pytest.mark.slow
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
