"""How long parsers take for hard text: a megabyte of it, whole, by fours and by single characters.

    python -m benchmarks.parsers [--characters 1000000] [NAME ...]

Of each parser's hard texts the slowest is looked for with short ones, which are fed whole: in
longer ones small pieces wait for one another. Printed are the processor's seconds for that one,
scaled to a megabyte, and how they grow from half of its length: 2 is linear.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

from octavo_registry import PluginHost, ReasoningParser, ToolParser

MEGABYTE = 1_000_000
SHORT = 8_000
NUM_DOUBTED = 30
PIECES = {"whole": 10**9, "by 4": 4, "by 1": 1}
UNITS = (
    *("a", "[", "{", "]", "(", "<", "\\", '"', "'", "`", ",", " ", "\n", "\n ", "1", "-", "é"),
    *("文😀", '{"a":', "a=[", "[a", "{a", "1,", "f(", ", ", '", "', "', '", '\\"', r"\u0041"),
    *(r"\ud83d", "</", "<a>", "[]", "{}", "][", "a,", "-,", "a:1,", "a:a,", "a=1,", "a='',"),
    *("[],", "{},", "f(),", "{a", "a:{", '"a":1,', '"a":"",', "'',", "<,", "],", "=[", "',"),
    *("f()", '{""', "[\n", '"\\a', "',''{", "',''[", "],,", "{}],"),
    *("', ", "-',''[", '{a", "', "a[],{a"),
)
"""What values may consist of: brackets, quotes, escapes, spaces, other alphabets."""


def parsers(wanted: list[str]) -> Iterator[tuple[str, ToolParser | ReasoningParser]]:
    """The installed parsers, or those named."""
    host = PluginHost.discover()
    for registry in (host.tool_parsers, host.reasoning_parsers):
        for name in registry.names():
            if not wanted or name in wanted:
                yield f"{registry.kind} {name}", registry.load(name)(None)


def hard_texts(parser: ToolParser | ReasoningParser) -> Iterator[tuple[str, str]]:
    """How texts may begin, with a call cut at each twelfth of its length, and what then repeats.

    That is one of the units, a tag, a tag cut short, or a whole call.
    """
    sample = parser.samples[0]
    tags = [unit for tag in parser.markers[:3] for unit in (tag, tag[:-1], f"{tag[:-1]}a")]
    units = [sample, sample[:12], sample[0], sample[-8:], *tags, *UNITS]
    begun = [sample[: len(sample) * share // 12] for share in range(3, 12)]
    opened = [head + bracket for head in begun for bracket in "[{"]
    yield from ((head, unit) for head in dict.fromkeys(("", *begun, *opened)) for unit in units)


def seconds(
    parser: ToolParser | ReasoningParser, head: str, unit: str, num_characters: int, size: int
) -> float:
    """Processor seconds to feed such a text in pieces of ``size``."""
    text = head + unit * (num_characters // len(unit))
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    stream = parser.stream(None)
    begin = time.process_time()
    for piece in pieces:
        stream.feed(piece)
    stream.finish()
    return time.process_time() - begin


def slowest(parser: ToolParser | ReasoningParser) -> tuple[str, str]:
    """The hard text that takes longest; short times are doubted, and the longest taken again."""

    def short(text: tuple[str, str]) -> float:
        return seconds(parser, *text, SHORT, PIECES["whole"])

    def long(text: tuple[str, str]) -> float:
        return min(seconds(parser, *text, 4 * SHORT, PIECES["whole"]) for _ in range(3))

    return max(sorted(hard_texts(parser), key=short)[-NUM_DOUBTED:], key=long)


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    options.add_argument("names", nargs="*")
    options.add_argument("--characters", type=int, default=MEGABYTE)
    given = options.parse_args()
    num = given.characters
    for name, parser in parsers(given.names):
        head, unit = slowest(parser)
        for pieces, size in PIECES.items():
            half, whole = (seconds(parser, head, unit, n, size) for n in (num // 2, num))
            print(
                f"{name:32} {pieces:6} {whole * MEGABYTE / num:6.2f} s, x{whole / half:.2f}: "
                f"{head[-40:]!r} + {unit[:40]!r} ...",
                flush=True,
            )


if __name__ == "__main__":
    main()
