"""What tool parsers build their forms of: the tools of a request, and calls written as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo_registry import CallForm, ToolDefinition
from octavo_registry.structure import Chain, JsonText, Literal, OneOf, Repeat, Structure

_NO_ARGUMENTS: Mapping[str, Any] = {"properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """One tool of a request."""

    name: str
    parameters: Mapping[str, Any]
    """The schema of its arguments, which are an object."""

    @property
    def json_name(self) -> str:
        """The name as JSON text."""
        return json.dumps(self.name, ensure_ascii=False)


def functions(tools: Iterable[ToolDefinition] | None) -> list[Function]:
    """Return the functions among OpenAI's ``tools``; one without parameters takes no arguments."""
    found = []
    for tool in tools or ():
        function = tool.get("function") or {}
        if "name" in function:
            given = function.get("parameters")
            schema = given if isinstance(given, Mapping) else _NO_ARGUMENTS
            found.append(Function(name=function["name"], parameters={"type": "object", **schema}))
    return found


def json_object(function: Function, *, arguments: str = "arguments") -> Structure:
    """Return ``{"name": ..., "arguments": ...}`` as chat templates write it."""
    return Chain(
        (
            Literal(f'{{"name": {function.json_name}, "{arguments}": '),
            JsonText(function.parameters),
            Literal("}"),
        )
    )


def call_form(
    calls: Sequence[Structure],
    *,
    parallel: bool,
    triggers: Sequence[str],
    before_each: str = "",
    after_each: str = "",
    between: str = "",
    before_all: str = "",
    after_all: str = "",
) -> CallForm:
    """Return the form of one of ``calls``, or several if ``parallel``, with the text around."""
    each = Chain((Literal(before_each), OneOf(tuple(calls)), Literal(after_each)))
    repeat = Repeat(each, least=1, most=None if parallel else 1, separator=between)
    return CallForm(
        calls=Chain((Literal(before_all), repeat, Literal(after_all))), triggers=tuple(triggers)
    )


def separated(members: Sequence[tuple[Structure, bool]], separator: str) -> Structure:
    """Return the members in their order; those marked False may be missing, with a separator."""
    after_one: Structure = Literal("")
    first: Structure = Literal("")
    for member, is_required in reversed(members):
        begins = Chain((member, after_one))
        first = begins if is_required else OneOf((begins, first))
        follows = Chain((Literal(separator), member))
        optional = follows if is_required else OneOf((follows, Literal("")))
        after_one = Chain((optional, after_one))
    return first
