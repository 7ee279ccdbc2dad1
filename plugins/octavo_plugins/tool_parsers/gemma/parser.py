"""``call:f{key:<escape>text<escape>,n:1}`` between tags: keys are bare, strings between tags."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from octavo.tools import Reader, Reading, Stream
from octavo.tools.bare_values import ANY, NAME, bare_json, nesting_marks
from octavo.tools.forms import call_form, functions
from octavo.tools.json_text import encoded
from octavo.tools.loose_values import json_text
from octavo.tools.parameters import ToolTypes
from octavo_plugins.tool_parsers.gemma.form import NotWritable, gemma_call
from octavo_plugins.tool_parsers.gemma.members import CLOSERS, Members
from octavo_registry import CallForm, ParserStream, ToolDefinition


class GemmaParser:
    """What the two formats share."""

    samples: Sequence[str]
    open_tag: str
    close_tag: str
    quote: str
    """The tag before and behind a string, which has no escapes."""
    quotes_all: bool
    """Whether models put what is no string between quotes, too; schemas decide where there are."""

    @property
    def markers(self) -> Sequence[str]:
        """The tags."""
        return (self.open_tag, self.close_tag, self.quote)

    def __init__(self, tokenizer: object = None) -> None:
        """No tokenizer is needed."""

    def form(self, tools: Sequence[ToolDefinition], *, parallel: bool) -> CallForm | None:
        """Return the form of the models' chat templates; None: a schema asks for too much."""
        try:
            calls = [gemma_call(function, self.quote) for function in functions(tools)]
        except NotWritable:
            return None
        return call_form(
            calls,
            before_each=self.open_tag,
            after_each=self.close_tag,
            parallel=parallel,
            triggers=(self.open_tag,),
        )

    def stream(self, tools: Sequence[ToolDefinition] | None = None) -> ParserStream:
        """Begin a message."""
        return Stream(lambda reader: _Message(self, reader, tools).read())


class FunctionGemmaParser(GemmaParser):
    """FunctionGemma."""

    open_tag, close_tag = "<start_function_call>", "<end_function_call>"
    quote = "<escape>"
    quotes_all = True
    samples = (
        "<start_function_call>call:get_weather{location:<escape>London<escape>}<end_function_call>",
        "Both.<start_function_call>call:set{on:true,n:2.5,tags:[<escape>a<escape>],note:null}"
        "<end_function_call><start_function_call>call:now{}<end_function_call>",
    )


class Gemma4Parser(GemmaParser):
    """Gemma 4."""

    open_tag, close_tag = "<|tool_call>", "<tool_call|>"
    quote = '<|"|>'
    quotes_all = False
    samples = (
        '<|tool_call>call:get_weather{location:<|"|>San Francisco<|"|>,days:3}<tool_call|>',
        'I\'ll see.<|tool_call>call:f{list:[<|"|>a]<|"|>,{<|"|>3<|"|>:1}],nested:{inner:true}}'
        "<tool_call|><|tool_call>call:now{}<tool_call|>",
    )


class _Message:
    def __init__(
        self, parser: GemmaParser, reader: Reader, tools: Sequence[ToolDefinition] | None
    ) -> None:
        self._parser = parser
        self._reader = reader
        self._types = ToolTypes(tools)
        self._marks = nesting_marks(",", (parser.close_tag,))

    def read(self) -> Reading[None]:
        reader, parser = self._reader, self._parser
        closing: tuple[str, ...] = ()
        while tag := (yield from reader.text_until(parser.open_tag, *closing)):
            closing = ()
            if tag == parser.close_tag:
                continue
            reader.hold(tag)
            yield from reader.spaces()
            name = ""
            if (yield from reader.literal("call:")):
                name = yield from reader.take_while(NAME)
            if name and (yield from reader.literal("{")):
                reader.call(name)
                if not (yield from self._arguments(name)):
                    yield from reader.spaces()
                    closing = (parser.close_tag,)
            else:
                reader.give_back()

    def _arguments(self, name: str) -> Reading[bool]:
        """Pass on an object behind its bracket; return whether the call's end tag was its end."""
        reader, parser = self._reader, self._parser
        members = Members(parser.close_tag, parser.quote, partial(self._types.of, name))
        while members.closers:
            if plain := reader.scan(members.plain):
                reader.arguments(plain)
            elif reader.ahead in ("", ",") or reader.ahead.isspace():
                yield from reader.take_while(r"[\s,]")
                if not reader.ahead:
                    break
            elif reader.ahead == "<" and (yield from reader.literal(parser.close_tag)):
                while members.closers:
                    reader.arguments(members.close())
                return True
            else:
                yield from self._member(members)
        return False

    def _member(self, members: Members) -> Reading[None]:
        reader, to = self._reader, self._reader.arguments
        to(members.next())
        types, is_top = ANY, len(members.closers) == 1
        if members.closers[-1] == "}":
            key = yield from self._key()
            to(f'"{encoded(key)}": ')
            types = members.types(key)
        opener = reader.ahead or (yield from reader.peek())
        if opener in CLOSERS:
            yield from reader.take(1)
            members.open(opener)
        else:
            yield from self._scalar(types, members.closers[-1], is_top)

    def _key(self) -> Reading[str]:
        reader = self._reader
        if reader.ahead == "<" and (yield from reader.literal(self._parser.quote)):
            key, _ = yield from reader.read_until(self._parser.quote)
        else:
            key = (yield from reader.take_while(r"[^:,{}\[\]<]")).strip()
            if reader.ahead and reader.ahead != ":":
                return key
        yield from reader.spaces()
        yield from reader.literal(":")
        yield from reader.spaces()
        return key

    def _scalar(self, types: frozenset[str], closer: str, is_top: bool) -> Reading[None]:
        reader, to = self._reader, self._reader.arguments
        quote = self._parser.quote
        if (yield from reader.peek()) != "<" or not (yield from reader.literal(quote)):
            text = yield from self._bare(closer)
            to(bare_json(text, types))
        elif ("string" not in types) if types else (is_top and self._parser.quotes_all):
            text, end = yield from reader.read_until(quote)
            to(json_text(text, types) if end else f'"{encoded(text)}')
        else:
            to('"')
            end = yield from reader.text_until(quote, to=lambda text: to(encoded(text)))
            to('"' if end else "")

    def _bare(self, closer: str) -> Reading[str]:
        """Read up to a comma, the bracket's end or the call's, but for those in brackets."""
        reader, end = self._reader, self._parser.close_tag
        parts: list[str] = []
        depth = 0
        while True:
            text, depth = reader.take_nested(self._marks, "," + closer, depth)
            parts.append(text)
            if not reader.ahead:
                parts.append((yield from reader.take_while(r"[^,{}\[\]<]")))
            character = reader.ahead
            if not character or (depth == 0 and character in "," + closer):
                break
            if character == "<":
                if (yield from reader.peek(len(end))) == end:
                    break
                parts.append((yield from reader.take(1)))
        return "".join(parts).strip()
