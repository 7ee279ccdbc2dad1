"""What users ask for as a constraint that backends know, and the features that it takes."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from octavo.errors import ParameterError
from octavo.guided.gbnf import is_gbnf, lark_of_gbnf
from octavo.guided.lark import with_schemas
from octavo.guided.schema import core_schema
from octavo.guided.schema.core import closed
from octavo.guided.structural_tag import read_structural_tag
from octavo.params import GuidedParams
from octavo.wording import shown
from octavo_registry.guided import Constraint
from octavo_registry.structure import plain

OPTIONS = "x-guidance"
"""Says how the JSON of a schema in a grammar is written, and nothing about its values."""
MOST_CHARS = 2**20
"""Longest schema, pattern or grammar."""
MOST_CHOICES = 10_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CheckedConstraint:
    """``features``: what a backend must be able to enforce, by the names of its keywords."""

    constraint: Constraint
    features: frozenset[str]


def checked_constraint(params: GuidedParams) -> CheckedConstraint:
    """Check the constraint's form and size; raises and names what cannot be meant."""
    name = params.constraint
    value = getattr(params, name)
    features: frozenset[str] = frozenset()
    match name:
        case "json":
            core = core_schema(schema_of(value))
            constraint, features = Constraint(kind="json", value=core.schema), core.features
        case "json_object":
            if value is not True:
                raise _refused(name, value, "must be true")
            core = core_schema({"type": "object"})
            constraint, features = Constraint(kind="json", value=core.schema), core.features
        case "choice":
            constraint = Constraint(kind="choice", value=_checked_choices(value))
        case "regex":
            constraint = Constraint(kind="regex", value=_checked_pattern(value))
        case "grammar":
            text = _checked_text(name, value)
            if is_gbnf(text):
                lark = lark_of_gbnf(text)
            else:
                lark, features = _with_core_schemas(text)
            constraint = Constraint(kind="grammar", value=lark)
        case _:
            structure = read_structural_tag(value)
            constraint = Constraint(kind="structure", value=plain(structure.structure))
            features = structure.features
    return CheckedConstraint(constraint=constraint, features=features | {constraint.kind})


def _with_core_schemas(grammar: str) -> tuple[str, frozenset[str]]:
    """The grammar with core schemas behind ``%json``, and what these take."""
    features: set[str] = set()

    def core_of(schema: Any) -> Any:
        core = core_schema(schema)
        # What enforces grammars takes fewer numbers where bounds are that large.
        features.update(core.features - {"bounds:large"}, {"json"})
        options = schema.get(OPTIONS) if isinstance(schema, Mapping) else None
        if not isinstance(core.schema, dict) or not isinstance(options, Mapping):
            return core.schema
        return {**core.schema, OPTIONS: options}

    return with_schemas(grammar, core_of), frozenset(features)


def schema_of(given: Any) -> Mapping[str, Any] | bool:
    """The JSON schema of a dict, JSON text, a Pydantic model or a dataclass."""
    if isinstance(given, str):
        try:
            given = json.loads(_checked_text("json", given))
        except (ValueError, RecursionError) as error:
            raise ParameterError(f"json is not a JSON schema: {error}", param="json") from error
    elif isinstance(given, type) and hasattr(given, "model_json_schema"):
        given = given.model_json_schema()
    elif isinstance(given, type) and (
        dataclasses.is_dataclass(given) or issubclass(given, msgspec.Struct)
    ):
        given = closed(msgspec.json.schema(given))
    if not isinstance(given, (Mapping, bool)):
        raise _refused(
            "json", given, "must be a schema: a dict, JSON text, a Pydantic model or a dataclass"
        )
    return given


def _checked_text(name: str, value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MOST_CHARS:
        raise _refused(name, value, f"must be text of 1 to {MOST_CHARS} characters")
    return value


def _checked_pattern(value: object) -> str:
    pattern = _checked_text("regex", value)
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ParameterError(f"regex is no regular expression: {error}", param="regex") from error
    return pattern


def _checked_choices(value: object) -> list[str]:
    if (
        not isinstance(value, (list, tuple))
        or not 0 < len(value) <= MOST_CHOICES
        or not all(isinstance(each, str) and each for each in value)
        or sum(map(len, value)) > MOST_CHARS
    ):
        raise _refused(
            "choice", value, f"must be a list of 1 to {MOST_CHOICES} texts, none of them empty"
        )
    return list(dict.fromkeys(value))


def _refused(name: str, value: object, rule: str) -> ParameterError:
    return ParameterError(f"{name}={shown(value)} {rule}", param=name)
