"""The calls and the reasoning of gpt-oss, each alone or one parser behind the other."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.tools import Reader, Reading, Stream
from octavo.tools.forms import call_form, functions
from octavo_plugins.tool_parsers.openai.harmony import (
    CHANNEL,
    END,
    MARKERS,
    MESSAGE,
    START,
    Harmony,
)
from octavo_registry import CallForm, ParserStream, ToolDefinition
from octavo_registry.structure import Chain, JsonText, Literal, OneOf, Repeat, Structure, TextUntil

_ASSISTANT = f"{START}assistant"
_ANALYSIS = f"{CHANNEL}analysis{MESSAGE}"
_FINAL = f"{CHANNEL}final{MESSAGE}"


class OpenAIToolParser:
    """Alone, it also tells reasoning from content: the format has one markup for all three."""

    samples = (
        "<|channel|>analysis<|message|>Need to use function get_weather.<|end|><|start|>assistant"
        "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
        '{"location":"San Francisco"}<|call|>',
        '<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{"a": "<|end|>"}',
        "<|channel|>commentary<|message|>I'll make both.<|end|><|start|>assistant<|channel|>"
        'commentary to=functions.a<|message|>{"n": [1]}<|call|><|start|>assistant<|channel|>final'
        "<|message|>Done.<|return|>",
        ' to=functions.now<|channel|>commentary json<|message|>{"zone": "UTC"}',
    )
    markers = MARKERS

    def __init__(self, tokenizer: object = None) -> None:
        """No tokenizer is needed."""

    def form(self, tools: Sequence[ToolDefinition], *, parallel: bool) -> CallForm:
        """Return the form of one call: the model stops behind each, whatever ``parallel`` says."""
        recipient = f"{CHANNEL}commentary to=functions."
        calls = [
            Chain(
                (
                    Literal(f"{recipient}{function.name} <|constrain|>json{MESSAGE}"),
                    JsonText(function.parameters),
                )
            )
            for function in functions(tools)
        ]
        return call_form(calls, parallel=False, triggers=(recipient,))

    def stream(self, tools: Sequence[ToolDefinition] | None = None) -> ParserStream:
        """Begin a message."""
        return Stream(lambda reader: Harmony(reader).read())


class OpenAIReasoningParser:
    """Takes the analysis out, and the markup of all but calls."""

    samples = (
        '<|channel|>analysis<|message|>User asks: "What is 2 + 2?" Simple.<|end|>'
        "<|start|>assistant<|channel|>final<|message|>2 + 2 = 4.<|return|>",
        *OpenAIToolParser.samples,
    )
    markers = MARKERS

    def __init__(self, tokenizer: object = None) -> None:
        """No tokenizer is needed."""

    def stream(
        self, tools: Sequence[ToolDefinition] | None = None, *, prompt: str | None = None
    ) -> ParserStream:
        """Begin a message, maybe inside one that the prompt has begun."""
        stream = Stream(_message)
        header, message, _ = _begun(prompt or "")
        stream.feed(header + message)
        return stream

    def before_answer(self, prompt: str) -> Structure | None:
        """Return analysis, and the header of a final answer, which calls do without."""
        header, message, _ = _begun(prompt)
        thought = Chain((Literal(_ANALYSIS), TextUntil((END,)), Literal(_ASSISTANT)))
        rest = (Repeat(thought), OneOf((Literal(_FINAL), Literal(""))))
        if message and "analysis" in header:
            return Chain((TextUntil((END,)), Literal(_ASSISTANT), *rest))
        return None if header else Chain(rest)


def _message(reader: Reader) -> Reading[None]:
    return Harmony(reader, keep_calls=True).read()


def _begun(prompt: str) -> tuple[str, str, str]:
    """Return the header of the answer that a prompt has begun, its last tag, and its text."""
    _, _, answer = prompt.rpartition(_ASSISTANT)
    return answer.partition(MESSAGE) if END not in answer else ("", "", "")
