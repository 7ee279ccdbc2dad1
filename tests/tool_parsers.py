"""What the tests of tool-call and reasoning parsers share: messages, cuts, damage, comparison.

A test renders a message as the model's chat template would, and the parser has to read it back:

    @quick
    @given(messages(avoid=("<tool_call>",)))
    def test_hermes_reads_back_what_its_template_writes(parts):
        assert_reads_back(PARSER, render(parts), parts)
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from octavo.testing.parsers import TOOLS as TOOLS
from octavo.testing.parsers import tool as tool  # the tests find it here, beside the rest
from octavo.testing.structure_texts import FRAGMENTS, admits, random_text
from octavo.tools import parsed
from octavo.tools.forms import functions
from octavo_registry import ParsedMessage, ReasoningParser, ToolDefinition, ToolParser

quick = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
WORD = re.compile(r"word\d+")
"""What is planted in texts to see that none is lost."""


@dataclass(frozen=True)
class Call:
    """A call that a message is rendered from."""

    name: str
    arguments: Mapping[str, Any]


Part = str | Call
"""Content, or a call."""


# -- messages ----------------------------------------------------------------------------------


def texts(*, avoid: Sequence[str] = (), tags: Sequence[str] = ()) -> st.SearchStrategy[str]:
    """Text full of what means something to some format, and of ``tags``, but without ``avoid``."""
    pieces = st.one_of(
        st.integers(0, 999).map("word{}".format),
        st.sampled_from((*FRAGMENTS, *tags)),
        st.text(st.characters(exclude_categories=("Cs",)), max_size=4),
    )
    return (
        st.lists(pieces, max_size=6)
        .map("".join)
        .filter(lambda text: not any(tag in text for tag in avoid))
    )


def json_values(strings: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    """Any JSON value."""
    leaves = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(10**15), 10**15),
        st.floats(allow_nan=False, allow_infinity=False),
        strings,
    )
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3), st.dictionaries(strings, inner, max_size=3)
        ),
        max_leaves=6,
    )


NAMES = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_\-]{0,11}", fullmatch=True)


def messages(
    *,
    avoid: Sequence[str] = (),
    tags: Sequence[str] = (),
    names: st.SearchStrategy[str] = NAMES,
    arguments: st.SearchStrategy[Mapping[str, Any]] | None = None,
    content_before: bool = True,
    content_after: bool = True,
    least_calls: int = 0,
    most_calls: int = 3,
) -> st.SearchStrategy[list[Part]]:
    """Messages of calls with content before, between and after, each where it is wanted.

    ``avoid`` is what content must not have, ``tags`` what strings of arguments have on purpose;
    ``arguments`` None: any JSON object.
    """
    if arguments is None:
        strings = texts(tags=(*avoid, *tags))
        arguments = st.dictionaries(strings, json_values(strings), max_size=3)
    calls = st.builds(Call, name=names, arguments=arguments)

    @st.composite
    def message(draw: Callable[..., Any]) -> list[Part]:
        found = draw(st.lists(calls, min_size=least_calls, max_size=most_calls))
        content = texts(avoid=avoid)
        parts: list[Part] = [draw(content)] if content_before or not found else []
        for call in found:
            parts += [call, draw(content) if content_after else ""]
        return [part for part in parts if part != ""]

    return message()


def expected(parts: Sequence[Part]) -> tuple[str | None, list[tuple[str, str]]]:
    """Return the content, and the calls with their arguments, that a parser has to find."""
    calls = [(p.name, canonical(p.arguments)) for p in parts if isinstance(p, Call)]
    content = "".join(p for p in parts if isinstance(p, str) and not (calls and p.isspace()))
    return content or None, calls


def canonical(value: Any) -> str:
    """JSON text that is equal for equal values alone: 1, 1.0 and true differ."""
    return json.dumps(value, sort_keys=True)


# -- what must hold ----------------------------------------------------------------------------


def parse(
    parser: ToolParser | ReasoningParser,
    text: str,
    tools: Sequence[ToolDefinition] | None = None,
    *pieces: str,
    **options: Any,
) -> ParsedMessage:
    """Return the message of the text, or of these pieces of it."""
    return parsed(parser.stream(tools, **options), *(pieces or (text,)))


def assert_reads_back(
    parser: ToolParser,
    text: str,
    parts: Sequence[Part],
    tools: Sequence[ToolDefinition] | None = None,
) -> None:
    """The text, which these parts were rendered to, gives the parts again, however it is cut."""
    message = parse(parser, text, tools)
    calls = [(call.name, canonical(json.loads(call.arguments))) for call in message.tool_calls]
    assert (message.content, calls) == expected(parts), text
    assert_cuts_do_not_matter(parser, text, tools)


def assert_cuts_do_not_matter(
    parser: ToolParser | ReasoningParser,
    text: str,
    tools: Sequence[ToolDefinition] | None = None,
    **options: Any,
) -> None:
    """Fed by characters, in two, and in random pieces, the text gives what the whole gives.

    The same for the text cut short at a random place.
    """
    chance = random.Random(text)
    for each in (text, text[: chance.randint(0, len(text))]):
        whole = parse(parser, each, tools, **options)
        for pieces in (list(each), *(_random_cut(each, chance) for _ in range(5))):
            cut = parse(parser, each, tools, *(pieces or [""]), **options)
            assert cut == whole, (each, pieces)


def assert_no_text_is_lost(
    parser: ToolParser | ReasoningParser,
    text: str,
    tools: Sequence[ToolDefinition] | None = None,
    **options: Any,
) -> None:
    """Every planted word of the text (`texts` plants them) is found somewhere in the message."""
    found = everything(parse(parser, text, tools, **options))
    assert [word for word in WORD.findall(text) if word not in found] == [], text


def everything(message: ParsedMessage) -> str:
    """All text of a message."""
    calls = [f"{call.id} {call.name} {call.arguments}" for call in message.tool_calls]
    return "\n".join([message.reasoning or "", message.content or "", *calls])


def assert_form_is_read_back(
    parser: ToolParser, tools: Sequence[ToolDefinition] = TOOLS, *, examples: int = 40
) -> None:
    """Texts of the parser's form are calls of these tools, with arguments that validate."""
    schemas = {function.name: function.parameters for function in functions(tools)}
    for seed in range(examples):
        parallel = bool(seed % 2)
        form = parser.form(tools, parallel=parallel)
        assert form is not None
        text = random_text(form.calls, random.Random(seed))
        assert text.startswith(form.triggers)
        message = parse(parser, text, tools)
        assert message.content is None, (text, message)
        assert len(message.tool_calls) >= 1, text
        assert parallel or len(message.tool_calls) == 1, text
        for call in message.tool_calls:
            assert admits(schemas[call.name], json.loads(call.arguments)), (text, call)
        assert_cuts_do_not_matter(parser, text, tools)


def damaged(rendered: st.SearchStrategy[str], tags: Sequence[str]) -> st.SearchStrategy[str]:
    """Texts with a fault: something cut out, doubled or put in, or the end missing."""

    @st.composite
    def damage(draw: Callable[..., Any]) -> str:
        text = draw(rendered)
        a, b = sorted(draw(st.tuples(*[st.integers(0, len(text))] * 2)))
        piece = draw(st.sampled_from([*tags, *FRAGMENTS, text[a:b]]))
        return draw(
            st.sampled_from(
                [text[:a], text[:a] + text[b:], text[:b] + text[a:], text[:a] + piece + text[a:]]
            )
        )

    return damage()


def _random_cut(text: str, chance: random.Random) -> list[str]:
    ends = sorted(chance.choices(range(len(text) + 1), k=chance.choice([1, 2, 8])))
    return [text[a:b] for a, b in zip([0, *ends], [*ends, len(text)], strict=True)]
