"""Checks of tool-call and reasoning parsers: the same result wherever the text is cut."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Literal

from octavo.testing.report import Check
from octavo_registry import ParsedMessage, ReasoningParser, ToolParser
from octavo_registry.faults import one_line

PLAIN = "Hello, world: 2 < 3 and {nothing} to call."
RANDOM_CUTS = 50


def check_parser(
    title: str,
    parser: ToolParser | ReasoningParser,
    *,
    kind: Literal["tool_calls", "reasoning"],
) -> list[Check]:
    """Parse the parser's own samples, all their prefixes, and plain text."""
    checks = [
        _check(f"{title} finds {kind} in one of its samples", _found_nothing(parser, kind)),
        _check(f"{title} does not depend on where text is cut", _differences(parser)),
    ]
    if kind == "tool_calls":
        checks.append(_check(f"{title} leaves plain text as it is", _changes_plain_text(parser)))
    return checks


def _check(name: str, problems: Iterator[str]) -> Check:
    try:
        problem = next(problems, None)
    except Exception as error:
        problem = f"raised {one_line(error)}"
    return Check(name=name, passed=problem is None, detail=problem or "")


def _found_nothing(parser: ToolParser | ReasoningParser, kind: str) -> Iterator[str]:
    if not any(getattr(_parse(parser, [sample]), kind) for sample in parser.samples):
        yield f"no {kind} in its {len(parser.samples)} samples"


def _changes_plain_text(parser: ToolParser | ReasoningParser) -> Iterator[str]:
    message = _parse(parser, [PLAIN])
    if message != ParsedMessage(content=PLAIN):
        yield f"{PLAIN!r} became {message!r}"


def _differences(parser: ToolParser | ReasoningParser) -> Iterator[str]:
    for sample in (*parser.samples, PLAIN, ""):
        # A text may end anywhere, at the token limit; cut short it must parse just as evenly.
        for end in range(len(sample) + 1):
            text = sample[:end]
            yield from _difference(parser, text, list(text))
        for pieces in _cuts(sample):
            yield from _difference(parser, sample, pieces)


def _difference(
    parser: ToolParser | ReasoningParser, text: str, pieces: Sequence[str]
) -> Iterator[str]:
    whole, joined = _parse(parser, [text]), _parse(parser, pieces)
    if whole != joined:
        yield f"{text!r} gives {whole!r}, but in pieces {list(pieces)!r} {joined!r}"


def _cuts(text: str) -> Iterator[list[str]]:
    """Every cut in two, then random ones with a fixed seed, some with empty pieces."""
    for middle in range(len(text) + 1):
        yield [text[:middle], text[middle:]]
    generator = random.Random(0)
    for _ in range(RANDOM_CUTS):
        ends = sorted(generator.choices(range(len(text) + 1), k=generator.randint(2, 9)))
        yield [text[a:b] for a, b in zip([0, *ends], [*ends, len(text)], strict=True)]


def _parse(parser: ToolParser | ReasoningParser, pieces: Sequence[str]) -> ParsedMessage:
    stream = parser.stream(None)
    deltas = [delta for piece in pieces for delta in stream.feed(piece)]
    return ParsedMessage.joined([*deltas, *stream.finish()])
