"""A plugin's parsers as the framework calls them: what they raise or return wrongly names them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from octavo.errors import OctavoError, PluginError
from octavo_registry import (
    CallForm,
    Delta,
    LazyRegistry,
    ParserStream,
    ReasoningParser,
    ToolDefinition,
    ToolParser,
)
from octavo_registry.faults import FAILURES
from octavo_registry.structure import Structure

Failed = Callable[[str, BaseException], PluginError]
"""Counts a failure; by what was called."""


def _failure_of(registry: LazyRegistry[Any], name: str) -> Failed:
    plugin = registry.info(name).plugin

    def failed(method: str, error: BaseException) -> PluginError:
        return registry.faults.failure(plugin, f"{registry.kind} {name!r}, {method}", error)

    return failed


class CheckedToolParser:
    """A tool parser by name."""

    def __init__(self, registry: LazyRegistry[ToolParser], name: str, tokenizer: object) -> None:
        self.inner = registry.make(name, tokenizer)
        self._failed = _failure_of(registry, name)
        self.samples: Sequence[str] = getattr(self.inner, "samples", ())
        self.markers = _checked_markers(self.inner.markers, self._failed)

    def form(self, tools: Sequence[ToolDefinition], *, parallel: bool) -> CallForm | None:
        """See ``ToolParser``; an OctavoError refuses the tools."""
        try:
            form: Any = self.inner.form(tools, parallel=parallel)
            if not isinstance(form, CallForm | None):
                raise TypeError(f"it returned {type(form).__name__}, not a CallForm or None")
        except OctavoError:
            raise
        except FAILURES as error:
            raise self._failed("form", error) from error
        return form

    def stream(self, tools: Sequence[ToolDefinition] | None = None) -> ParserStream:
        """See ``ToolParser``."""
        try:
            return _CheckedStream(self.inner.stream(tools), self._failed)
        except FAILURES as error:
            raise self._failed("stream", error) from error


class CheckedReasoningParser:
    """A reasoning parser by name."""

    def __init__(
        self, registry: LazyRegistry[ReasoningParser], name: str, tokenizer: object
    ) -> None:
        self.inner = registry.make(name, tokenizer)
        self._failed = _failure_of(registry, name)
        self.samples: Sequence[str] = getattr(self.inner, "samples", ())
        self.markers = _checked_markers(self.inner.markers, self._failed)

    def before_answer(self, prompt: str) -> Any:
        """See ``ReasoningParser``."""
        try:
            structure = self.inner.before_answer(prompt)
            if not isinstance(structure, Structure | None):
                raise TypeError(f"it returned {type(structure).__name__}, not a Structure or None")
        except FAILURES as error:
            raise self._failed("before_answer", error) from error
        return structure

    def stream(
        self, tools: Sequence[ToolDefinition] | None = None, *, prompt: str | None = None
    ) -> ParserStream:
        """See ``ReasoningParser``."""
        try:
            return _CheckedStream(self.inner.stream(tools, prompt=prompt), self._failed)
        except FAILURES as error:
            raise self._failed("stream", error) from error


class _CheckedStream:
    def __init__(self, inner: ParserStream, failed: Failed) -> None:
        self._feed, self._finish, self._failed = inner.feed, inner.finish, failed

    def feed(self, text: str) -> list[Delta]:
        try:
            return _checked_deltas(self._feed(text))
        except FAILURES as error:
            raise self._failed("feed", error) from error

    def finish(self) -> list[Delta]:
        try:
            return _checked_deltas(self._finish())
        except FAILURES as error:
            raise self._failed("finish", error) from error


def _checked_deltas(given: Iterable[Any]) -> list[Delta]:
    deltas = list(given)  # of a generator nothing is left once it was looked at
    for delta in deltas:
        if type(delta) is not Delta:
            raise TypeError(f"it returned {delta!r} among Deltas")
    return deltas


def _checked_markers(markers: Any, failed: Failed) -> Sequence[str]:
    if isinstance(markers, str) or not all(isinstance(each, str) for each in markers):
        raise failed("markers", TypeError(f"{markers!r} is no sequence of texts"))
    return tuple(markers)
