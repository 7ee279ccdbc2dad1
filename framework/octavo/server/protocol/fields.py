"""The field table: what each field of a request's body does here.

A field works if the request's struct has it. The others that OpenAI, Anthropic or vLLM document are
here: those with no effect, which cannot change an answer, and those that are refused unless they
have a value that asks for nothing. Any other is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec

from octavo.params import shown
from octavo.server.errors import HttpError
from octavo_registry.naming import near_matches

_MAX_HINT_CHARS: Final = 200
"""All of the known names, where none is near, are more than anybody reads."""
FORM_ADVICE: Final = "say in a message what form the answer should have, and check it"
Body = TypeVar("Body", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Refused:
    """A field that would change the answer, and is not available."""

    advice: str
    """What to do instead."""
    harmless: tuple[Any, ...] = ()
    """Values that ask for nothing, as null always does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldTable:
    """The verdicts on one route's fields besides those of its struct."""

    no_effect: Mapping[str, Any] = field(default_factory=dict)
    """Names and the types that their values must have all the same."""
    refused: Mapping[str, Refused] = field(default_factory=dict)


def read_body(
    body: dict[str, Any],
    kind: type[Body],
    table: FieldTable,
    *,
    lenient: bool,
    is_form: bool = False,
) -> tuple[Body, list[str]]:
    """Turn a JSON object into the route's struct; returns it and warnings about unknown fields.

    In a form numbers are texts, and what is left empty is not given.
    """
    if is_form:
        body = {name: value for name, value in body.items() if value != ""}
    # Not structs.fields, which reads the annotations anew: 0.7 ms of a request's 0.9.
    known = set(kind.__struct_encode_fields__)
    warnings = []
    # Clients write null for "not given".
    for name, value in body.items():
        if name in known or (value is None and (name in table.no_effect or name in table.refused)):
            continue
        if name in table.no_effect:
            _converted(value, table.no_effect[name], name, strict=not is_form)
        elif name in table.refused:
            refused = table.refused[name]
            if not any(type(value) is type(h) and value == h for h in refused.harmless):
                raise HttpError(
                    400, f"{name}={shown(value)} is not available: {refused.advice}", param=name
                )
        elif lenient:
            warnings.append(f"{shown(name)} is not known and was ignored")
        else:
            raise unknown(name, "is no field of this request",
                          [*known, *table.no_effect, *table.refused])  # fmt: skip
    given = {name: value for name, value in body.items() if name in known and value is not None}
    return _converted(given, kind, strict=not is_form), warnings


def unknown(name: str, what: str, known: Collection[str], param: str = "") -> HttpError:
    """The error for a name that is not among those that are known."""
    hint = near_matches(name[:64], known)
    text = f"{shown(name)} {what}" + (f"; {hint}" if len(hint) < _MAX_HINT_CHARS else "")
    return HttpError(400, text, param=param or name[:64], code="unknown_field")


def _converted(value: Any, kind: Any, name: str | None = None, *, strict: bool = True) -> Any:
    """The value as this type; ``name`` is that of the field, None for a whole body."""
    try:
        return msgspec.convert(value, kind, strict=strict, str_keys=True)
    except msgspec.ValidationError as error:
        raise _ill_typed(error, name) from None
    except (OverflowError, ValueError) as error:  # an integer that no float can hold
        raise HttpError(400, f"a number is too large: {error}", param=name) from None


def _ill_typed(error: msgspec.ValidationError, name: str | None) -> HttpError:
    """Msgspec says "Expected `int`, got `str` - at `$.n`"."""
    text, _, place = str(error).partition(" - at ")
    # Of a key, the place is "`key` in `$.logit_bias`".
    path = ((name or "") + place.rpartition("$")[2].strip("`")).removeprefix(".")
    missing = re.fullmatch(r"Object missing required field `(\w+)`", text)
    if missing is not None and not path:
        return HttpError(400, f"{missing[1]} is missing", param=missing[1])
    param = re.split(r"[.\[]", path)[0] or None
    what = text.replace("`", "").replace("Object", "the object").replace("null", "None")
    where = f"{path}: " if path else ""
    return HttpError(400, f"{where}{what[:1].lower()}{what[1:]}", param=param)
