"""The tool parser of formats whose calls are JSON objects behind a tag."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.tools.forms import call_form, functions, json_object
from octavo.tools.json_calls import tagged_calls
from octavo.tools.reader import Reader, Reading
from octavo.tools.stream import Stream
from octavo_registry import CallForm, ParserStream, ToolDefinition


class JsonCallParser:
    """Calls ``{"name": ..., "arguments": {...}}``, each or all of them between tags.

    A format says which tags, and how its chat template puts the calls together.
    """

    samples: Sequence[str] = ()
    opens: tuple[str, ...]
    """Tags with which calls begin; the first is that of the chat template."""
    closes: tuple[str, ...] = ()
    arguments_key = "arguments"
    """What the chat template calls the arguments; both usual names are read."""
    before_all = before_each = after_each = between = after_all = ""
    """What the chat template puts around its calls."""

    def __init__(self, tokenizer: object = None) -> None:
        """No tokenizer is needed."""

    @property
    def markers(self) -> Sequence[str]:
        """The tags, which are special tokens in some vocabularies."""
        return (*self.opens, *self.closes)

    @property
    def triggers(self) -> Sequence[str]:
        """The texts with which calls of the chat template begin."""
        return self.opens[:1]

    def form(self, tools: Sequence[ToolDefinition], *, parallel: bool) -> CallForm:
        """Return the form of the models' chat template."""
        return call_form(
            [json_object(each, arguments=self.arguments_key) for each in functions(tools)],
            parallel=parallel,
            triggers=self.triggers,
            before_all=self.before_all,
            before_each=self.before_each,
            between=self.between,
            after_each=self.after_each,
            after_all=self.after_all,
        )

    def stream(self, tools: Sequence[ToolDefinition] | None = None) -> ParserStream:
        """Begin a message."""
        return Stream(self.message)

    def message(self, reader: Reader) -> Reading[None]:
        """Read a message to its end."""
        yield from tagged_calls(reader, opens=self.opens, closes=self.closes)
