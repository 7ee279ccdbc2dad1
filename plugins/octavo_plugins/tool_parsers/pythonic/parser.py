"""Calls written as Python, in a list of their own or between tags."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

from octavo.tools import Reader, Reading, Stream
from octavo.tools.bare_values import NAME
from octavo.tools.forms import call_form, functions
from octavo.tools.json_calls import json_calls
from octavo.tools.pythonic import PythonCalls, python_call
from octavo_registry import CallForm, ParserStream, ToolDefinition

_MAY_BEGIN = re.compile(rf"{NAME}|\s|\Z")
"""What may follow the bracket of a list of calls."""
_NO_CALL = rf"\s*+(?:{NAME}++(?:\((?=[^\w.\-)\s])|(?=[^\w.\-(]))|(?=[^\w.\-\s]))"
_NO_CALLS = re.compile(rf"{_NO_CALL}(?:[^\[<\n]*+\[{_NO_CALL})*+")
"""What follows a bracket that begins no call, and further such brackets in its line."""


class TaggedPythonParser:
    """Calls between a pair of tags; Olmo 3's stand on lines, LFM2's in a list."""

    samples: Sequence[str]
    open_tag: str
    close_tag: str
    before = after = ""
    between = ", "

    @property
    def markers(self) -> Sequence[str]:
        """The tags."""
        return (self.open_tag, self.close_tag)

    def __init__(self, tokenizer: object = None) -> None:
        """No tokenizer is needed."""

    def form(self, tools: Sequence[ToolDefinition], *, parallel: bool) -> CallForm | None:
        """Return the form of the model's chat template; None: a key is no name."""
        return _form(
            tools,
            parallel=parallel,
            triggers=(self.open_tag,),
            before_all=self.open_tag + self.before,
            between=self.between,
            after_all=self.after + self.close_tag,
        )

    def stream(self, tools: Sequence[ToolDefinition] | None = None) -> ParserStream:
        """Begin a message."""
        return Stream(partial(_tagged, tools, self.open_tag, self.close_tag))


class Lfm2Parser(TaggedPythonParser):
    """``<|tool_call_start|>[f(a='x'), g()]<|tool_call_end|>``, LFM2 and LFM2.5.

    These models can be asked for JSON between the tags, so that is read too.
    """

    open_tag, close_tag = "<|tool_call_start|>", "<|tool_call_end|>"
    before, after = "[", "]"
    samples = (
        '<|tool_call_start|>[get_candidate_status(candidate_id="12345")]<|tool_call_end|>'
        "Checking the current status of candidate ID 12345.",
        "Both.<|tool_call_start|>[bash(command='sed -n '1,9p' f.py'), now()]<|tool_call_end|>",
        '<|tool_call_start|>[{"name": "ping", "arguments": {"n": 1}}]<|tool_call_end|>',
    )


class Olmo3Parser(TaggedPythonParser):
    r"""``<function_calls>\nf(a='x')\ng()\n</function_calls>``, a call a line."""

    open_tag, close_tag = "<function_calls>", "</function_calls>"
    before, between, after = "\n", "\n", "\n"
    samples = (
        "<function_calls>\nget_weather(city='New York', units='celsius')\n</function_calls>",
        "I'll do both.\n<function_calls>\nset(on=true, tags=['a', 'b'], note=null)\nnow()\n"
        "</function_calls>\nDone.",
    )


class PythonicParser:
    """``[f(a='x'), g()]``: Llama 3.2, ToolACE and others.

    A list of calls may begin a message or a line; elsewhere it must call one of the request's
    tools, for brackets and parentheses stand in many texts.
    """

    samples: Sequence[str] = (
        "[get_weather(city='San Francisco', metric='celsius')]",
        "[register_user(name='John Doe', age=37, address={'city': 'Oslo', 'zip': None}, "
        "member=True, aliases=['J', \"D\"]), now()]",
        "It's [1] or [x](y), so:\n[f(a='it\\'s', b=(1, 2.5)), g()]\nDone.",
    )
    markers: Sequence[str] = ()
    open_tags: tuple[str, ...] = ()
    close_tags: tuple[str, ...] = ()

    def __init__(self, tokenizer: object = None) -> None:
        """No tokenizer is needed."""

    def form(self, tools: Sequence[ToolDefinition], *, parallel: bool) -> CallForm | None:
        """Return the form that the models are asked for; None: a key is no name."""
        return _form(
            tools,
            parallel=parallel,
            triggers=[f"[{function.name}(" for function in functions(tools)],
            before_all="[",
            between=", ",
            after_all="]",
        )

    def stream(self, tools: Sequence[ToolDefinition] | None = None) -> ParserStream:
        """Begin a message."""
        return Stream(partial(_in_text, tools, self.open_tags, self.close_tags))


class Llama4PythonicParser(PythonicParser):
    """Llama 4's: Python's calls, maybe between ``<|python_start|>`` and ``<|python_end|>``."""

    samples = (
        "<|python_start|>[get_weather(city='LA', metric='C'), now()]<|python_end|>",
        '[get_weather(location="Vancouver"), calculate_route(start="Boston", end="New York")]',
        "<|python_start|>print(1)<|python_end|>",
    )
    open_tags, close_tags = ("<|python_start|>",), ("<|python_end|>",)
    markers = open_tags + close_tags


def _form(
    tools: Sequence[ToolDefinition],
    *,
    parallel: bool,
    triggers: Sequence[str],
    before_all: str,
    between: str,
    after_all: str,
) -> CallForm | None:
    calls = [python_call(function) for function in functions(tools)]
    if None in calls:
        return None
    return call_form(
        [call for call in calls if call],
        parallel=parallel,
        triggers=triggers,
        before_all=before_all,
        between=between,
        after_all=after_all,
    )


def _tagged(
    tools: Sequence[ToolDefinition] | None, open_tag: str, close_tag: str, reader: Reader
) -> Reading[None]:
    calls = PythonCalls(reader, tools, ends=(close_tag,))
    closing: tuple[str, ...] = ()
    while tag := (yield from reader.text_until(open_tag, *closing)):
        closing = ()
        if tag == close_tag:
            continue
        reader.hold(open_tag)
        yield from reader.spaces()
        reader.record()
        ended = False
        if (yield from reader.peek(2)) in ("[{", '{"', "{\n"):
            found = yield from json_calls(reader)
        else:
            in_list = yield from reader.literal("[")
            yield from reader.spaces()
            found = yield from calls.calls()
            ended = calls.ended
            if found and in_list and not ended:
                yield from reader.literal("]")
        written = reader.recorded().rstrip()
        if not found:
            reader.give_back()
        elif not ended:
            yield from reader.spaces()
            if (yield from reader.literal(close_tag)):
                yield from _without_echo(reader, written)
            else:
                closing = (close_tag,)


def _without_echo(reader: Reader, written: str) -> Reading[None]:
    """Leave out calls that are written once more, exactly so: LFM2 repeats them behind the tag."""
    reader.hold()
    yield from reader.spaces()
    at = 0
    while at < len(written):
        piece = reader.coming(len(written) - at) or (yield from reader.peek())
        if not piece or not written.startswith(piece, at):
            reader.give_back()
            return
        yield from reader.take(len(piece))
        at += len(piece)
    reader.drop()


def _in_text(
    tools: Sequence[ToolDefinition] | None,
    open_tags: tuple[str, ...],
    close_tags: tuple[str, ...],
    reader: Reader,
) -> Reading[None]:
    names = {function.name for function in functions(tools)}
    line_is_blank = True

    def content(text: str) -> None:
        nonlocal line_is_blank
        reader.content(text)
        _, newline, line = text.rpartition("\n")
        line_is_blank = (line_is_blank or bool(newline)) and not line.strip()

    calls = PythonCalls(reader, tools, ends=close_tags)
    closing: tuple[str, ...] = ()
    while tag := (yield from reader.text_until("[", *open_tags, *closing, to=content)):
        closing = ()
        if tag in close_tags:
            continue
        if tag == "[":
            if reader.ahead in ("", "["):  # of several only the last may begin calls
                content((yield from reader.take_while(r"\[")))
            if no_calls := reader.take_at_once(_NO_CALLS):
                reader.content(tag + no_calls[0])
                line_is_blank = False
                continue
            if not _MAY_BEGIN.match(reader.ahead or (yield from reader.peek())):
                content(tag)
                continue
        reader.hold(tag)
        begins = tag in open_tags or line_is_blank
        if tag != "[":
            yield from reader.spaces()
        if tag == "[" or (yield from reader.literal("[")):
            yield from reader.spaces()
            if (yield from calls.calls(None if begins else names)):
                if not calls.ended:
                    yield from reader.literal("]")
                    closing = close_tags
                continue
        line_is_blank = False
        reader.give_back()
