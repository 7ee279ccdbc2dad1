"""Constraints on a chat's answer: behind the model's reasoning, or in the form of tool calls."""

from __future__ import annotations

from octavo.errors import UnsupportedConstraint
from octavo.guided.constraint import schema_of
from octavo.params import GuidedParams
from octavo_registry.structure import (
    Chain,
    JsonText,
    Literal,
    OneOf,
    RegexText,
    Structure,
    Triggered,
)
from octavo_registry.tools import CallForm

_SPACE = OneOf((Literal("\n\n"), Literal("\n"), Literal("")))
"""What models write between their reasoning and a call."""


def behind(reasoning: Structure, guided: GuidedParams) -> GuidedParams:
    """The constraint for what follows the reasoning, with the reasoning left free."""
    return _structured(Chain((reasoning, _structure(guided))), guided)


def behind_calls(reasoning: Structure, calls: GuidedParams) -> GuidedParams:
    """The constraint for calls that follow the reasoning, and may stand apart from it."""
    return _structured(Chain((reasoning, _SPACE, _structure(calls))), calls)


def only_calls(form: CallForm) -> GuidedParams:
    """Nothing but calls, one at least."""
    return GuidedParams(structural_tag=form.calls)


def calls_or(form: CallForm, answer: GuidedParams) -> GuidedParams:
    """Nothing but calls, or an answer that its own constraint admits."""
    return _structured(OneOf((form.calls, _structure(answer))), answer)


def text_with_calls(form: CallForm, *, parallel: bool) -> GuidedParams:
    """Free text in which what begins as a call is one."""
    most = None if parallel else 1
    return GuidedParams(structural_tag=Triggered(form.triggers, (form.calls,), most=most))


def _structured(structure: Structure, given: GuidedParams) -> GuidedParams:
    return GuidedParams(structural_tag=structure, backend=given.backend)


def _structure(guided: GuidedParams) -> Structure:
    value = getattr(guided, guided.constraint)
    match guided.constraint:
        case "json":
            return JsonText(schema_of(value))
        case "json_object":
            return JsonText({"type": "object"})
        case "regex":
            return RegexText(value)
        case "choice":
            return OneOf(tuple(map(Literal, value)))
        case "structural_tag" if isinstance(value, Structure):
            return value
    raise UnsupportedConstraint(
        f"{guided.constraint} cannot stand behind a model's reasoning or beside calls of tools; "
        "use json, regex or choice, or leave out the tools and switch the reasoning off",
        param=guided.constraint,
    )
