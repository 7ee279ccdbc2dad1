"""Checks of tool-call and reasoning parsers: even, lossless, fast, and true to their own forms."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from octavo.testing.report import Check, tried
from octavo.testing.structure_texts import admits, random_text
from octavo.tools.forms import functions
from octavo.tools.parsers import parsed
from octavo_registry import (
    ParsedMessage,
    ParserStream,
    ReasoningParser,
    ToolDefinition,
    ToolParser,
)

PLAIN = "Hello, world: 2 < 3 and {nothing} to call."
WORD = "octavo"
RANDOM_CUTS = 50
NUM_FORM_TEXTS = 30
HARD_CHARACTERS = 2**16
HARD_SECONDS = 1.0
"""Most processor time. A linear parser needs a tenth; one that begins anew each time, many."""
PIECES_PER_LOOK = 64
"""Pieces of hard text from one look at the clock to the next."""

_UNIT = {"type": "string", "enum": ["C", "F"]}
_RIDER = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": ["integer", "null"]}},
    "required": ["name"],
}


def tool(
    name: str, required: Sequence[str] | None = None, **properties: Mapping[str, Any] | str
) -> dict[str, Any]:
    """Make an entry of ``tools``; a property is a schema or a type, required if not said else."""
    schemas = {
        key: {"type": value} if isinstance(value, str) else dict(value)
        for key, value in properties.items()
    }
    parameters = {
        "type": "object",
        "properties": schemas,
        "required": list(schemas if required is None else required),
    }
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS: tuple[ToolDefinition, ...] = (
    tool("get_weather", city="string", unit=_UNIT),
    tool(
        "plan_trip",
        stops={"type": "array", "items": {"type": "string"}},
        budget="number",
        days="integer",
        direct="boolean",
        rider=_RIDER,
    ),
    tool("search", ["query"], query="string", limit="integer"),
    {"type": "function", "function": {"name": "now"}},
)
"""Tools with arguments of all sorts, one with optional ones, one without any."""


def check_tool_parser(title: str, parser: ToolParser) -> list[Check]:
    """Parse the parser's own samples, all their prefixes, faults in them, texts of its form."""

    def stream() -> ParserStream:
        return parser.stream(None)

    return [
        tried(f"{title} finds tool_calls in one of its samples", _no_calls(parser)),
        *_checks_of_all(title, parser, stream),
        tried(f"{title} leaves plain text as it is", _changes_plain_text(stream)),
        _form_check(f"{title} reads all that its form admits", parser),
    ]


def check_reasoning_parser(title: str, parser: ReasoningParser) -> list[Check]:
    """Parse the parser's own samples, all their prefixes, faults in them, and what it expects."""

    def stream() -> ParserStream:
        return parser.stream(None)

    return [
        tried(f"{title} finds reasoning in one of its samples", _no_reasoning(parser)),
        *_checks_of_all(title, parser, stream),
        tried(f"{title} finds the answer behind the reasoning", _answer_is_missed(parser)),
    ]


def _checks_of_all(
    title: str, parser: ToolParser | ReasoningParser, stream: Callable[[], ParserStream]
) -> list[Check]:
    samples = parser.samples
    return [
        tried(f"{title} lists its special tokens", _odd_markers(parser)),
        tried(f"{title} does not depend on where text is cut", _differences(samples, stream)),
        tried(f"{title} loses no text", _losses(samples, stream)),
        tried(f"{title} is done with hard text in time", _delays(samples, stream)),
    ]


def _no_calls(parser: ToolParser) -> Iterator[str]:
    if not any(parsed(parser.stream(None), sample).tool_calls for sample in parser.samples):
        yield f"no tool_calls in its {len(parser.samples)} samples"


def _no_reasoning(parser: ReasoningParser) -> Iterator[str]:
    if not any(parsed(parser.stream(None), sample).reasoning for sample in parser.samples):
        yield f"no reasoning in its {len(parser.samples)} samples"


def _odd_markers(parser: ToolParser | ReasoningParser) -> Iterator[str]:
    markers = parser.markers
    if isinstance(markers, str) or not all(isinstance(m, str) and m for m in markers):
        yield f"markers is {markers!r}, and must be a sequence of texts"


def _changes_plain_text(stream: Callable[[], ParserStream]) -> Iterator[str]:
    message = parsed(stream(), PLAIN)
    if message != ParsedMessage(content=PLAIN):
        yield f"{PLAIN!r} became {message!r}"


def _differences(samples: Sequence[str], stream: Callable[[], ParserStream]) -> Iterator[str]:
    for sample in (*samples, PLAIN, ""):
        # A text may end anywhere, at the token limit; cut short it must parse just as evenly.
        for end in range(len(sample) + 1):
            text = sample[:end]
            yield from _difference(stream, text, list(text))
        for pieces in _cuts(sample):
            yield from _difference(stream, sample, pieces)


def _difference(
    stream: Callable[[], ParserStream], text: str, pieces: Sequence[str]
) -> Iterator[str]:
    whole, joined = parsed(stream(), text), parsed(stream(), *pieces)
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


def _losses(samples: Sequence[str], stream: Callable[[], ParserStream]) -> Iterator[str]:
    """A word put in anywhere must be found again, unless all else is found as without it."""
    for sample in samples:
        unchanged = parsed(stream(), sample)
        for place in range(len(sample) + 1):
            text = f"{sample[:place]}{WORD}{sample[place:]}"
            message = parsed(stream(), text)
            if WORD not in _all_text(message) and message != unchanged:
                yield f"{WORD!r} of {text!r} is not in {message!r}"


def _all_text(message: ParsedMessage) -> str:
    calls = [f"{call.id} {call.name} {call.arguments}" for call in message.tool_calls]
    return "\n".join([message.reasoning or "", message.content or "", *calls])


def _delays(samples: Sequence[str], stream: Callable[[], ParserStream]) -> Iterator[str]:
    """Long texts of tags, of a begun call and what its values may consist of, whole and by bits."""
    sample = samples[0]
    begun = sample[: len(sample) * 2 // 3]
    for head, unit in (
        *(("", each) for each in (sample, sample[:12], sample[0])),
        *((begun, each) for each in ("a", "[", "\\", "<", " ", '{"a":', sample[-8:])),
    ):
        text = head + unit * (HARD_CHARACTERS // len(unit))
        for pieces in ([text], [text[at : at + 3] for at in range(0, len(text), 3)]):
            if not _in_time(stream(), pieces):
                yield (
                    f"{len(text)} characters {head + unit!r}... in {len(pieces)} pieces "
                    f"take more than {HARD_SECONDS} s"
                )


def _in_time(stream: ParserStream, pieces: Sequence[str]) -> bool:
    """Feed the pieces, and give up when time is over."""
    deadline = time.process_time() + HARD_SECONDS
    for number, piece in enumerate(pieces):
        stream.feed(piece)
        # To ask for the time takes as long as to feed a piece.
        if number % PIECES_PER_LOOK == 0 and time.process_time() > deadline:
            return False
    stream.finish()
    return time.process_time() < deadline


def _form_check(name: str, parser: ToolParser) -> Check:
    if parser.form(TOOLS, parallel=True) is None:
        return Check(name=name, passed=True, detail="not claimed: calls cannot be demanded")
    return tried(name, _unread_form_texts(parser))


def _unread_form_texts(parser: ToolParser) -> Iterator[str]:
    schemas = {function.name: function.parameters for function in functions(TOOLS)}
    for seed in range(NUM_FORM_TEXTS):
        parallel = bool(seed % 2)
        form = parser.form(TOOLS, parallel=parallel)
        assert form is not None
        text = random_text(form.calls, random.Random(seed))
        message = parsed(parser.stream(TOOLS), text)
        calls = message.tool_calls
        if not text.startswith(tuple(form.triggers)):
            yield f"{text!r} begins with none of the triggers {form.triggers!r}"
        if message.content or not calls or (len(calls) > 1 and not parallel):
            yield f"{text!r} gives {message!r}"
        for call in calls:
            if not admits(schemas[call.name], json.loads(call.arguments)):
                yield f"{text!r} gives {call!r}, which its schema does not admit"
        if parsed(parser.stream(TOOLS), *text) != message:
            yield f"{text!r} gives {message!r}, but not by characters"


def _answer_is_missed(parser: ReasoningParser) -> Iterator[str]:
    """What the parser says may come before the answer, and then an answer."""
    structure = parser.before_answer("")
    for seed in range(NUM_FORM_TEXTS):
        thought = random_text(structure, random.Random(seed)) if structure else ""
        message = parsed(parser.stream(None, prompt=""), thought + PLAIN)
        if (message.content or "").strip() != PLAIN:
            yield f"{thought + PLAIN!r} gives {message!r}"
