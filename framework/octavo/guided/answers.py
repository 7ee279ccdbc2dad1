"""Constraints on a chat's answer: behind the model's reasoning, or in the form of tool calls."""

from __future__ import annotations

from octavo.errors import UnsupportedConstraint
from octavo.guided.constraint import schema_of
from octavo.params import GuidedParams
from octavo_registry.structure import Chain, JsonText, Literal, OneOf, RegexText, Structure
from octavo_registry.tools import CallForm


def behind(reasoning: Structure, guided: GuidedParams) -> GuidedParams:
    """The constraint for what follows the reasoning, with the reasoning left free."""
    answer = _structure(guided)
    return GuidedParams(structural_tag=Chain((reasoning, answer)), backend=guided.backend)


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
        f"{guided.constraint} cannot follow a model's reasoning; use json, regex or choice, or "
        "switch the reasoning off",
        param=guided.constraint,
    )


def calls_required(form: CallForm) -> GuidedParams:
    """Nothing but calls, one at least."""
    return GuidedParams(structural_tag=form.calls)
