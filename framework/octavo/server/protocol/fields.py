"""The field table: what each field of a request's body does here.

A field works if the request's struct has it. The others that OpenAI, Anthropic or vLLM document are
here: those with no effect, which cannot change an answer, and those that are refused unless they
have a value that asks for nothing. Any other is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from octavo.params import shown
from octavo.server.errors import HttpError
from octavo_registry.naming import near_matches

Body = TypeVar("Body", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Refused:
    """A field that would change the answer, and is not available."""

    advice: str
    """What to do instead."""
    harmless: tuple[Any, ...] = (None,)
    """Values that ask for nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldTable:
    """The verdicts on one route's fields besides those of its struct."""

    no_effect: frozenset[str] = frozenset()
    refused: Mapping[str, Refused] = field(default_factory=dict)


def read_body(
    body: dict[str, Any], kind: type[Body], table: FieldTable, *, lenient: bool
) -> tuple[Body, list[str]]:
    """Turn a JSON object into the route's struct; returns it and warnings about unknown fields."""
    known = {f.encode_name for f in msgspec.structs.fields(kind)}
    warnings = []
    for name, value in body.items():
        if name in known or name in table.no_effect:
            continue
        refused = table.refused.get(name)
        if refused is not None:
            if not any(type(value) is type(h) and value == h for h in refused.harmless):
                raise HttpError(
                    400, f"{name}={shown(value)} is not available: {refused.advice}", param=name
                )
        elif lenient:
            warnings.append(f"{shown(name)} is not known and was ignored")
        else:
            names = [*known, *table.no_effect, *table.refused]
            raise HttpError(
                400,
                f"{shown(name)} is no field of this request; {near_matches(name[:64], names)}",
                param=name[:64],
                code="unknown_field",
            )
    # Clients write null for "not given".
    given = {name: value for name, value in body.items() if name in known and value is not None}
    try:
        return msgspec.convert(given, kind, str_keys=True), warnings
    except msgspec.ValidationError as error:
        raise _ill_typed(error) from None


def _ill_typed(error: msgspec.ValidationError) -> HttpError:
    """Msgspec says "Expected `int`, got `str` - at `$.n`"."""
    text, _, place = str(error).partition(" - at ")
    path = place.strip("`").removeprefix("$").removeprefix(".")
    param = path.split(".")[0].split("[")[0] or None
    what = text.replace("`", "").replace("Object", "the object").replace("null", "None")
    where = f"{path}: " if path else ""
    return HttpError(400, f"{where}{what[:1].lower()}{what[1:]}", param=param)
