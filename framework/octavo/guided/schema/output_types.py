"""Output types, as Outlines reads them, in terms of our constraints."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from octavo.errors import BadRequestError, ConfigError, ParameterError, UnsupportedConstraint
from octavo.guided.schema.core import closed
from octavo.wording import shown
from octavo_registry.structure import Chain, JsonText, OneOf, RegexText, Repeat, Structure


@contextmanager
def importing_outlines() -> Iterator[None]:
    """Say what to do where its version does not fit."""
    try:
        yield
    except ImportError as error:
        raise ConfigError(
            f"no Outlines is here that fits ({error}); pip install 'outlines>=1.3,<2'"
        ) from error


with importing_outlines():
    from outlines.types import dsl
    from outlines.types.dsl import Term, python_types_to_terms, to_regex

ReadSchema = Callable[[dsl.JsonSchema], dict[str, Any]]


def constraint_of(output_type: Any) -> dict[str, Any]:
    """The keyword of ``GuidedParams`` that a type is, and its value.

    What a type means is for Outlines to say, but its way with schemas leaves keywords out: so a
    schema stays one, and what stands around it becomes parts of a structure.
    """
    # Outlines means the fields of a type and no others, and patterns from end to end.
    read = _schema if isinstance(output_type, Term) else lambda term: _whole(closed(_schema(term)))
    try:
        term = python_types_to_terms(output_type)
        return {"json_object": True} if output_type is dict else _constraint(term, read)
    except BadRequestError:
        raise
    except (RuntimeError, TypeError, ValueError) as error:
        why, _, _ = " ".join(str(error).split()).partition(" Please open an issue")
        raise ParameterError(f"output type {shown(output_type)}: {why}", param="guided") from error


def _constraint(term: Term, read: ReadSchema) -> dict[str, Any]:
    match term:
        case dsl.CFG(definition=grammar):
            return {"grammar": grammar}
        case dsl.JsonSchema():
            return {"json": read(term)}
        case dsl.Alternatives() | dsl.Choice() if texts := _texts(_parts(term)):
            return {"choice": texts}
    if _has_schema(term):
        return {"structural_tag": _structure(term, read)}
    return {"regex": to_regex(term)}


def _texts(parts: list[Term]) -> list[str]:
    """The texts of parts that are nothing else, or none; a choice may not be empty."""
    texts = [part.value for part in parts if isinstance(part, dsl.String) and part.value]
    return texts if len(texts) == len(parts) else []


def _parts(term: Term) -> list[Term]:
    if isinstance(term, dsl.Choice):
        return list(map(python_types_to_terms, term.items))
    return [term.term] if hasattr(term, "term") else getattr(term, "terms", [])


def _has_schema(term: Term) -> bool:
    return isinstance(term, dsl.JsonSchema) or any(map(_has_schema, _parts(term)))


def _structure(term: Term, read: ReadSchema) -> Structure:
    if not _has_schema(term):
        return RegexText(to_regex(term))
    parts = tuple(_structure(part, read) for part in _parts(term))
    match term:
        case dsl.JsonSchema():
            return JsonText(read(term))
        case dsl.Sequence():
            return Chain(parts)
        case dsl.Alternatives() | dsl.Choice():
            return OneOf(parts)
        case dsl.Optional():
            return Repeat(parts[0], most=1)
        case dsl.KleeneStar():
            return Repeat(parts[0])
        case dsl.KleenePlus():
            return Repeat(parts[0], least=1)
        case dsl.QuantifyExact(count=count):
            return Repeat(parts[0], least=count, most=count)
        case dsl.QuantifyMinimum(min_count=least):
            return Repeat(parts[0], least=least)
        case dsl.QuantifyMaximum(max_count=most):
            return Repeat(parts[0], most=most)
        case dsl.QuantifyBetween(min_count=least, max_count=most):
            return Repeat(parts[0], least=least, most=most)
    raise TypeError(f"JSON in a {type(term).__name__} is not known; leave the one or the other out")


def _schema(term: dsl.JsonSchema) -> dict[str, Any]:
    if term.whitespace_pattern is not None:
        raise UnsupportedConstraint(
            "whitespace_pattern of a JsonSchema cannot be enforced; leave it out", param="guided"
        )
    schema: dict[str, Any] = json.loads(term.schema)
    return schema


def _whole(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_whole(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: _whole(value) for name, value in schema.items()}
    if isinstance(found.get("pattern"), str):
        found["pattern"] = f"^(?:{found['pattern']})$"
    return found
