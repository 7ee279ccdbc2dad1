"""What each keyword says of each type, when it must hold and when it must not.

A handler gives the alternatives that one keyword (with those that belong to it) leaves of a type.
Of types that it does not speak about, it leaves everything when it must hold, and nothing when
it must not.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from octavo.guided.schema import regex
from octavo.guided.schema.applicators import APPLICATORS
from octavo.guided.schema.clauses import Alternatives, Body, Clause, Handler, anything, only
from octavo.guided.schema.containers import (
    Arrays,
    Count,
    ItemGroup,
    Literal,
    NameGroup,
    Objects,
    Some,
)
from octavo.guided.schema.formats import format_strings
from octavo.guided.schema.meaning import Meaning
from octavo.guided.schema.scalars import Numbers, Strings
from octavo.guided.schema.source import Location, unsupported
from octavo.guided.schema.values import Kind, exact, identity, kind_of


def number(place: Location, keyword: str) -> Fraction:
    """A keyword's number."""
    value = _schema(place)[keyword]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise unsupported(keyword, place.pointer, f"{value!r} is no number")
    return exact(value)


def count(place: Location, keyword: str) -> int:
    """A keyword's whole number, none below 0."""
    value = number(place, keyword)
    if value < 0 or value.denominator != 1:
        raise unsupported(keyword, place.pointer, f"{float(value)} is no count")
    return int(value)


def _schema(place: Location) -> Mapping[str, Any]:
    assert not isinstance(place.schema, bool)
    return place.schema


def _types(meaning: Meaning, place: Location, kind: Kind, holds: bool, track: bool) -> Alternatives:
    names = _schema(place)["type"]
    names = [names] if isinstance(names, str) else names
    known = ("integer", "null", "boolean", "number", "string", "array", "object")
    if not isinstance(names, list) or not names or any(name not in known for name in names):
        raise unsupported("type", place.pointer, f"{names!r} is none of {', '.join(known)}")
    if kind == "number" and "number" not in names and "integer" in names:
        one = Fraction(1)
        return [
            Clause(
                Numbers(multiple=one) if holds else Numbers(not_multiples=((one, place.pointer),))
            )
        ]
    return [anything(kind)] if (kind in names) is holds else []


def _enum(meaning: Meaning, place: Location, kind: Kind, holds: bool, track: bool) -> Alternatives:
    values = _schema(place)["enum"]
    if not isinstance(values, list):
        raise unsupported("enum", place.pointer, "must be a list")
    return _values(meaning, place, kind, holds, values)


def _const(meaning: Meaning, place: Location, kind: Kind, holds: bool, track: bool) -> Alternatives:
    return _values(meaning, place, kind, holds, [_schema(place)["const"]])


def _values(
    meaning: Meaning, place: Location, kind: Kind, holds: bool, values: list[Any]
) -> Alternatives:
    unique = {identity(value): value for value in values if kind_of(value) == kind}
    mine = tuple(unique.values())
    if kind == "boolean":
        mine = tuple(sorted(mine))
    if holds:
        return [Clause(anything(kind).body, mine)] if mine else []
    if kind in ("null", "boolean"):
        left = tuple(value for value in anything(kind).values or () if value not in mine)
        return [Clause(None, left)] if left else []
    if kind in ("number", "string"):
        return [Clause(anything(kind).body, None, mine)]
    others = tuple((meaning.source.made(as_schema(value), place), False) for value in mine)
    return list(meaning.clauses(others, kind))


def as_schema(value: Any) -> dict[str, Any]:
    """The schema of one value, in terms of its parts."""
    if isinstance(value, dict):
        return {
            "type": "object",
            "properties": {name: {"const": item} for name, item in value.items()},
            "required": list(value),
            "additionalProperties": False,
        }
    return {
        "type": "array",
        "prefixItems": [{"const": item} for item in value],
        "items": False,
        "minItems": len(value),
    }


def _bound(keyword: str, above: bool, is_open: bool) -> Handler:
    def handle(
        meaning: Meaning, place: Location, kind: Kind, holds: bool, track: bool
    ) -> Alternatives:
        flag = _schema(place).get("exclusive" + keyword[0].upper() + keyword[1:])
        if is_open and isinstance(_schema(place)[keyword], bool):
            return [anything(kind)] if holds else []  # draft 4: it belongs to minimum or maximum
        limit = number(place, keyword)
        opened = is_open or flag is True
        low = Numbers(low=limit, low_open=opened if above else not opened)
        high = Numbers(high=limit, high_open=not opened if above else opened)
        yes, no = (low, high) if above else (high, low)
        return only(kind, "number", holds, yes, [no])

    return handle


def _multiple_of(
    meaning: Meaning, place: Location, kind: Kind, holds: bool, track: bool
) -> Alternatives:
    step = number(place, "multipleOf")
    if step <= 0:
        raise unsupported("multipleOf", place.pointer, "must be above 0")
    no = Numbers(not_multiples=((step, place.pointer),))
    return only(kind, "number", holds, Numbers(multiple=step), [no])


def _sized(keyword: str) -> Handler:
    """minLength, maxItems and their like: one bound on a size."""
    is_low = keyword.startswith("min")
    of: Kind = {"Length": "string", "Items": "array", "Properties": "object"}[keyword[3:]]  # type: ignore[assignment]
    make: Any = {"string": Strings, "array": Arrays, "object": Objects}[of]

    def handle(
        meaning: Meaning, place: Location, kind: Kind, holds: bool, track: bool
    ) -> Alternatives:
        limit = count(place, keyword)
        if is_low:
            no = [make(high=limit - 1)] if limit else []
            return only(kind, of, holds, make(low=limit), no)
        return only(kind, of, holds, make(high=limit), [make(low=limit + 1)])

    return handle


def _pattern(
    meaning: Meaning, place: Location, kind: Kind, holds: bool, track: bool
) -> Alternatives:
    if kind != "string":
        return only(kind, "string", holds, None, None)
    found = meaning.pattern(_schema(place)["pattern"], "pattern", place)
    no = Strings(pattern=regex.other(found), pointer=place.pointer)
    return only(kind, "string", holds, Strings(pattern=found, pointer=place.pointer), [no])


def _format(
    meaning: Meaning, place: Location, kind: Kind, holds: bool, track: bool
) -> Alternatives:
    if kind != "string":
        return only(kind, "string", holds, None, None)
    name = _schema(place)["format"]
    found = format_strings(name, place)
    if found is None:
        return [anything(kind)] if holds else []
    no: list[Body] = [Strings(pattern=regex.other(found.pattern), pointer=place.pointer)]
    if found.high is not None:
        no.append(Strings(low=found.high + 1))
    return only(kind, "string", holds, found, no)


def _items(meaning: Meaning, place: Location, kind: Kind, holds: bool, track: bool) -> Alternatives:
    """``prefixItems`` and ``items``, and what they were called before 2020-12."""
    if kind != "array":
        return only(kind, "array", holds, None, None)
    schema, source = _schema(place), meaning.source
    listed = "items" if isinstance(schema.get("items"), list) else "prefixItems"
    rest_name = "additionalItems" if listed == "items" else "items"
    prefix = schema.get(listed, [])
    if not isinstance(prefix, list):
        raise unsupported(listed, place.pointer, "must be a list of schemas")
    prefix_places = [source.child(place, listed, index) for index in range(len(prefix))]
    rest = source.child(place, rest_name) if rest_name in schema else None
    if holds:
        group = ItemGroup(
            tuple((item, True) for item in prefix_places), (rest, True) if rest else None
        )
        return [Clause(Arrays((group,)))]
    found = [
        Clause(Arrays((ItemGroup((None,) * index + ((item, False),), noted=False),), low=index + 1))
        for index, item in enumerate(prefix_places)
    ]
    if rest is not None and rest.schema is False:
        found.append(Clause(Arrays(low=len(prefix) + 1)))
    elif rest is not None:
        blame = (rest_name, place.pointer)
        hit = Count((rest, False), 1, None, len(prefix), blame)
        found.append(Clause(Arrays(counts=(hit,))))
    return found


def _contains(
    meaning: Meaning, place: Location, kind: Kind, holds: bool, track: bool
) -> Alternatives:
    schema = _schema(place)
    if "contains" not in schema or kind != "array":
        return only(kind, "array", holds, None, None)
    item = (meaning.source.child(place, "contains"), True)
    low = count(place, "minContains") if "minContains" in schema else 1
    high = count(place, "maxContains") if "maxContains" in schema else None
    blame = ("contains", place.pointer)
    yes = Arrays(counts=(Count(item, low, high, 0, blame),), low=low)
    no: list[Body] = []
    if low:
        no.append(Arrays(counts=(Count(item, 0, low - 1, 0, blame),)))
    if high is not None:
        no.append(Arrays(counts=(Count(item, high + 1, None, 0, blame),), low=high + 1))
    return only(kind, "array", holds, yes, no)


def _unique(
    meaning: Meaning, place: Location, kind: Kind, holds: bool, track: bool
) -> Alternatives:
    if _schema(place)["uniqueItems"] is not True:
        return [anything(kind)] if holds else []
    no = Arrays(low=2, not_unique=place.pointer)
    return only(kind, "array", holds, Arrays(unique=place.pointer), [no])


def _properties(
    meaning: Meaning, place: Location, kind: Kind, holds: bool, track: bool
) -> Alternatives:
    """``properties``, ``patternProperties`` and ``additionalProperties``."""
    if kind != "object":
        return only(kind, "object", holds, None, None)
    schema, source = _schema(place), meaning.source
    tables: dict[str, dict[str, Location]] = {}
    for keyword in ("properties", "patternProperties"):
        if not isinstance(table := schema.get(keyword, {}), dict):
            raise unsupported(keyword, place.pointer, "must map names to schemas")
        tables[keyword] = {name: source.child(place, keyword, name) for name in table}
    names = tables["properties"]
    patterns = [
        (meaning.pattern(name, "patternProperties", place), item)
        for name, item in tables["patternProperties"].items()
    ]
    rest = source.child(place, "additionalProperties") if "additionalProperties" in schema else None
    if holds:
        group = NameGroup(
            {name: (item, True) for name, item in names.items()},
            tuple((found, (item, True)) for found, item in patterns),
            (rest, True) if rest else None,
        )
        return [Clause(Objects((group,)))]
    found = [
        Clause(Objects((NameGroup({name: (item, False)}, noted=False),), required=(name,)))
        for name, item in names.items()
    ]
    blame = ("patternProperties", place.pointer)
    found += [Clause(Objects(some=(Some(set_, (item, False), blame),))) for set_, item in patterns]
    if rest is not None:
        known = [regex.text(name) for name in names] + [set_ for set_, _ in patterns]
        blame = ("additionalProperties", place.pointer)
        some = Some(regex.other(regex.alt(*known)), (rest, False), blame)
        found.append(Clause(Objects(some=(some,))))
    return found


def _property_names(
    meaning: Meaning, place: Location, kind: Kind, holds: bool, track: bool
) -> Alternatives:
    if kind != "object":
        return only(kind, "object", holds, None, None)
    names = meaning.source.child(place, "propertyNames")
    if holds:
        return [Clause(Objects(named=((names, True),)))]
    blame = ("propertyNames", place.pointer)
    some = Some(regex.ANY_TEXT, None, blame, name=(names, False))
    return [Clause(Objects(some=(some,)))]


def _required(
    meaning: Meaning, place: Location, kind: Kind, holds: bool, track: bool
) -> Alternatives:
    names = _schema(place)["required"]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise unsupported("required", place.pointer, f"{names!r} is no list of names")
    absent: list[Body] = [Objects((absence(meaning, name),)) for name in names]
    return only(kind, "object", holds, Objects(required=tuple(dict.fromkeys(names))), absent)


def absence(meaning: Meaning, name: str) -> NameGroup:
    """No property of this name."""
    never: Literal = meaning.source.never
    return NameGroup({name: never}, noted=False)


HANDLERS: dict[str, Handler] = {
    **APPLICATORS,
    "type": _types,
    "enum": _enum,
    "const": _const,
    "minimum": _bound("minimum", above=True, is_open=False),
    "maximum": _bound("maximum", above=False, is_open=False),
    "exclusiveMinimum": _bound("exclusiveMinimum", above=True, is_open=True),
    "exclusiveMaximum": _bound("exclusiveMaximum", above=False, is_open=True),
    "multipleOf": _multiple_of,
    "pattern": _pattern,
    "format": _format,
    **dict.fromkeys(("prefixItems", "items", "additionalItems"), _items),
    **dict.fromkeys(("contains", "minContains", "maxContains"), _contains),
    "uniqueItems": _unique,
    **dict.fromkeys(("properties", "patternProperties", "additionalProperties"), _properties),
    "propertyNames": _property_names,
    "required": _required,
    **{
        keyword: _sized(keyword)
        for keyword in (
            *("minLength", "maxLength", "minItems", "maxItems"),
            *("minProperties", "maxProperties"),
        )
    },
}
"""Handlers by keyword; keywords with one handler are read where the first of them stands."""
