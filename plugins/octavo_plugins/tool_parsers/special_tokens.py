"""Formats whose calls are a head and JSON arguments between special tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from octavo.tools import Reader, Reading, Stream
from octavo.tools.forms import Function, call_form, functions
from octavo.tools.json_calls import json_arguments
from octavo_plugins.tool_parsers.tagged_calls import CallTags, tagged_calls
from octavo_registry import CallForm, ParserStream, ToolDefinition
from octavo_registry.structure import Chain, JsonText, Structure


class SpecialTokenParser:
    """Reads calls in a class's ``tags``; classes say how a head is read and written."""

    tags: ClassVar[CallTags]
    after_json: ClassVar[str] = ""
    """What stands between the arguments and the call's last token."""
    between_calls: ClassVar[str] = ""

    def __init__(self, tokenizer: object = None) -> None:
        """No tokenizer is needed."""

    def form(self, tools: Sequence[ToolDefinition], *, parallel: bool) -> CallForm:
        """Return the form of the models' chat template."""
        tags = self.tags
        return call_form(
            [
                Chain((self.head_form(function), JsonText(function.parameters)))
                for function in functions(tools)
            ],
            before_all=tags.opening[0],
            before_each=tags.call,
            after_each=self.after_json + tags.closing[0],
            after_all=tags.closing[1],
            between=self.between_calls,
            parallel=parallel,
            triggers=(tags.opening[0],),
        )

    def stream(self, tools: Sequence[ToolDefinition] | None = None) -> ParserStream:
        """Begin a message."""
        return Stream(lambda reader: tagged_calls(reader, self.tags, lambda: self._call(reader)))

    def head_form(self, function: Function) -> Structure:
        """Return what stands between a call's first token and its arguments."""
        raise NotImplementedError

    def read_head(self, reader: Reader) -> Reading[tuple[str, str | None]]:
        """Read that; return the call's name, or "" if it is no call, and its id."""
        raise NotImplementedError

    def _call(self, reader: Reader) -> Reading[str | None]:
        name, id = yield from self.read_head(reader)
        if not name:
            return None
        ends = (*self.tags.closing, *self.tags.begins)
        yield from reader.spaces()
        tag = yield from reader.literal(*ends)
        if tag is not None or not (yield from reader.peek()):
            reader.call(name, id)
            reader.arguments("{}" if tag else "")
            return tag
        complete = yield from json_arguments(reader, lambda: reader.begin_call(name, id))
        if complete is None:
            return None
        if not complete:
            return (yield from reader.text_until(*ends, to=reader.arguments))
        reader.hold()
        yield from reader.spaces()
        yield from reader.literal("```")  # the end of a code block, in which DeepSeek V3 puts them
        yield from reader.spaces()
        tag = yield from reader.literal(*ends)
        if tag is not None:
            reader.drop()
        return tag
