"""From a user's schema to the core schema that backends are asked to enforce."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octavo.errors import UnsupportedConstraint
from octavo.guided.schema.emit import Emitter, Graph
from octavo.guided.schema.keywords import HANDLERS
from octavo.guided.schema.meaning import Meaning
from octavo.guided.schema.regex import TooManyStates
from octavo.guided.schema.source import SchemaDocument


@dataclass(frozen=True, slots=True)
class CoreSchema:
    """A schema of the same meaning, made of the few shapes in ``features``."""

    schema: dict[str, Any] | bool
    """False: no document satisfies it."""
    features: frozenset[str]
    """Names of ``FEATURES``: a backend that enforces all of them enforces the schema."""


def core_schema(schema: Mapping[str, Any] | bool) -> CoreSchema:
    """Rewrite a schema exactly, or raise ``UnsupportedConstraint`` naming keyword and place.

    The work is bounded: too many combinations of alternatives are refused as well.
    """
    source = SchemaDocument(schema)
    try:
        emitter = Emitter(Graph(Meaning(source, HANDLERS), ((source.root, True),)))
        core = emitter.emit()
    except (TooManyStates, RecursionError):
        raise UnsupportedConstraint("the schema's patterns or names are too complex") from None
    return CoreSchema(core, emitter.features.names())


def closed(schema: Any) -> Any:
    """Without names that no field has: what is read back could not be made of them."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: closed(value) for name, value in schema.items()}
    is_object = found.get("type") == "object" and "properties" in found
    return {"additionalProperties": False, **found} if is_object else found
