"""How long parsers take for hard text: a megabyte of it, whole, by fours and by single characters.

    python -m benchmarks.parsers [--characters 1000000] [NAME ...]

For each parser the slowest of its hard texts (`octavo.testing.parsers.hard_texts`), as processor
seconds scaled to a megabyte, and how that grows when the text is twice as long: 2 is linear.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator

from octavo.testing.parsers import hard_texts
from octavo_registry import ParserStream, PluginHost, ReasoningParser, ToolParser

MEGABYTE = 1_000_000
PIECES = {"whole": MEGABYTE * 1000, "by 4": 4, "by 1": 1}


def parsers(wanted: list[str]) -> Iterator[tuple[str, ToolParser | ReasoningParser]]:
    """The installed parsers, or those named."""
    host = PluginHost.discover()
    for registry in (host.tool_parsers, host.reasoning_parsers):
        for name in registry.names():
            if not wanted or name in wanted:
                yield f"{registry.kind} {name}", registry.load(name)(None)


def seconds(stream: ParserStream, text: str, size: int) -> float:
    """Processor seconds to feed the text in pieces of ``size``."""
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    begin = time.process_time()
    for piece in pieces:
        stream.feed(piece)
    stream.finish()
    return time.process_time() - begin


def slowest(
    new_stream: Callable[[], ParserStream], samples: list[str], num_characters: int, size: int
) -> tuple[float, float, str]:
    """Seconds a megabyte of the slowest text, its growth, and what it looks like."""
    worst = (0.0, "", "")
    for head, unit in samples:
        text = head + unit * (num_characters // len(unit))
        worst = max(worst, (seconds(new_stream(), text, size) / len(text), head, unit))
    _, head, unit = worst
    once, twice = (
        min(seconds(new_stream(), head + unit * (count // len(unit)), size) for _ in range(2))
        for count in (num_characters, 2 * num_characters)
    )
    return once * MEGABYTE / num_characters, twice / once, f"{head!r} + {unit!r} ..."


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("names", nargs="*")
    parser.add_argument("--characters", type=int, default=MEGABYTE)
    options = parser.parse_args()
    for name, each in parsers(options.names):
        for pieces, size in PIECES.items():
            found = slowest(
                lambda: each.stream(None), list(hard_texts(each)), options.characters, size
            )
            print(
                f"{name:32} {pieces:6} {found[0]:7.3f} s/MB  x{found[1]:.2f}  {found[2][:110]}",
                flush=True,
            )


if __name__ == "__main__":
    main()
