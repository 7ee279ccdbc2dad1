"""Formats whose calls are elements with an element for each parameter, and tags around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from octavo.tools import Reader, Reading, Stream
from octavo.tools.forms import Function, call_form, functions
from octavo.tools.parameter_forms import parameters_form
from octavo.tools.parameters import STRING, ArgumentsWriter, ToolTypes, ValueEnd
from octavo_plugins.tool_parsers.tagged_calls import CallTags, tagged_calls
from octavo_registry import CallForm, ParserStream, ToolDefinition
from octavo_registry.structure import Chain, Literal, Structure


@dataclass(frozen=True, slots=True, kw_only=True)
class Elements:
    """The tags of a format, and how its chat template writes them."""

    around: CallTags
    """``around.call`` stands before a call's name: ``<function=`` or the like."""
    parameter: str
    """What stands before a parameter's name."""
    name_end: str
    """What stands behind both names."""
    key_ends: tuple[str, ...] = ()
    """What else may stand behind a parameter's name."""
    parameter_end: str
    call_end: str
    on_own_line: bool = False
    """Whether line breaks around a value belong to the markup."""
    unclosed: tuple[str, ...]
    """What ends a value that lacks its closing tag."""
    line_end: str = "\n"
    """What is written behind the other tags inside a call."""
    between_calls: str = "\n"
    before_each: str = ""
    after_each: str = ""
    before_all: str = ""
    after_all: str = ""


class ElementParser:
    """Reads calls that are written with a class's ``tags``."""

    tags: ClassVar[Elements]

    def __init__(self, tokenizer: object = None) -> None:
        """No tokenizer is needed."""
        tags = self.tags
        self._value_end = ValueEnd(
            tag=tags.parameter_end,
            follows=(tags.parameter, tags.call_end, *tags.around.closing, *tags.around.begins),
            unclosed=tags.unclosed,
            on_own_line=tags.on_own_line,
        )

    def form(self, tools: Sequence[ToolDefinition], *, parallel: bool) -> CallForm | None:
        """Return the form of the models' chat template."""
        tags = self.tags
        calls = [self._call_form(function) for function in functions(tools)]
        written = [call for call in calls if call is not None]
        if len(written) < len(calls):
            return None
        return call_form(
            written,
            before_all=tags.before_all,
            before_each=tags.before_each,
            after_each=tags.after_each,
            after_all=tags.after_all,
            between=tags.between_calls,
            parallel=parallel,
            triggers=((*tags.around.opening, tags.around.call)[0],),
        )

    def stream(self, tools: Sequence[ToolDefinition] | None = None) -> ParserStream:
        """Begin a message."""
        types = ToolTypes(tools)
        return Stream(
            lambda reader: tagged_calls(reader, self.tags.around, lambda: self._call(reader, types))
        )

    def key_end(self, function: Function, key: str) -> str:
        """Return what stands behind a parameter's name."""
        return self.tags.name_end

    def value_types(self, declared: frozenset[str], key_end: str | None) -> frozenset[str]:
        """Return the types that a value may have, by the schema and by what follows its name."""
        return declared or STRING

    def read_parameter(
        self,
        arguments: ArgumentsWriter,
        types: ToolTypes,
        name: str,
        key: str,
        key_end: str | None,
    ) -> Reading[str | None]:
        """Read on behind the first tag of a parameter of the call ``name``; return what follows."""
        arguments.key(key)
        return (yield from arguments.value(self.value_types(types.of(name, key), key_end)))

    def _call_form(self, function: Function) -> Structure | None:
        tags = self.tags
        line_break = "\n" if tags.on_own_line else ""
        parameters = parameters_form(
            function,
            before=lambda key: f"{tags.parameter}{key}{self.key_end(function, key)}{line_break}",
            end=tags.parameter_end,
            after=tags.line_end,
        )
        if parameters is None:
            return None
        begin = f"{tags.around.call}{function.name}{tags.name_end}{tags.line_end}"
        return Chain((Literal(begin), parameters, Literal(tags.call_end)))

    def _call(self, reader: Reader, types: ToolTypes) -> Reading[str | None]:
        tags = self.tags
        name = (yield from reader.take_while(rf"[^{tags.name_end[0]}<\n]")).strip()
        if not name or not (yield from reader.literal(tags.name_end)):
            return None
        yield from reader.spaces()
        tag = yield from reader.literal(tags.parameter, tags.call_end, *tags.around.closing)
        if tag is None:
            return None
        reader.call(name)
        arguments = ArgumentsWriter(reader, self._value_end)
        while tag == tags.parameter:
            key, end = yield from reader.read_until(tags.name_end, *tags.key_ends, "\n")
            key = key.strip()
            if tags.on_own_line and end == tags.name_end:
                yield from reader.literal("\n")
            tag = yield from self.read_parameter(arguments, types, name, key, end)
        if tag is not None:
            arguments.close()
        return tag
