"""A user's schema as it was written: its limits, its dialect, and where its references lead."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote, urljoin

from octavo.errors import UnsupportedConstraint
from octavo.guided.schema.vocabulary import (
    CONSTRAINTS,
    DIALECTS,
    LISTS_OF_SCHEMAS,
    MAPS_OF_SCHEMAS,
    SCHEMAS,
    check_names,
)

MAX_SCHEMA_BYTES = 1 << 20
MAX_LEVELS = 64
MAX_PROPERTIES = 5_000
MAX_ENUM_VALUES = 10_000


def unsupported(keyword: str, pointer: str, why: str) -> UnsupportedConstraint:
    """The refusal of one keyword; ``pointer`` is where its schema stands."""
    return UnsupportedConstraint(f"{keyword!r} at {pointer or '#'}: {why}")


@dataclass(frozen=True, slots=True, eq=False)
class Location:
    """A subschema where it stands; one object for each place, compared by identity."""

    schema: Mapping[str, Any] | bool
    pointer: str
    base: str
    """The URI that its references are relative to."""
    draft: int
    """4, 6, 7, 2019 or 2020."""
    scope: Scope = ()
    """Where dynamic references lead on the way by which it was reached, where ways differ."""


Scope = tuple[tuple[str, str], ...]
"""Dynamic anchors by name, each with the pointer of the outermost schema that has it."""


class SchemaDocument:
    """One document with all the subschemas in it."""

    def __init__(self, document: Mapping[str, Any] | bool) -> None:
        _check_limits(document)
        self._document = document
        self._places: dict[str, Location] = {}
        self._made: dict[tuple[str, str, Scope], Location] = {}
        self._resources: dict[str, str] = {"": ""}
        self._anchors: dict[tuple[str, str], str] = {}
        self._dynamic: dict[str, dict[str, str]] = {}
        """Dynamic anchors by the resource that they are in, with their pointers."""
        self._scoped: dict[tuple[Location, Scope], Location] = {}
        root = self._place(document, "", "", _draft(document, 2020, ""))
        self._index(root)
        names = [name for anchors in self._dynamic.values() for name in anchors]
        self._is_dynamic = len(set(names)) < len(names)
        self.root = self._followed(self._entered(root, ()))
        self.never = (Location(False, "", "", 2020), True)
        """What no value satisfies."""
        self.always = (Location(True, "", "", 2020), True)

    def child(self, parent: Location, *path: str | int) -> Location:
        """The subschema under a keyword of a schema; where it is a mere reference, its target."""
        return self._followed(self._entered(self._under(parent, *path), parent.scope))

    def _entered(self, place: Location, scope: Scope) -> Location:
        """The place as it is reached from a scope: its own resource counts where no other does."""
        if not self._is_dynamic:
            return place
        known = dict(scope)
        added = {**self._dynamic.get(place.base, {}), **known}
        scope = tuple(sorted(added.items()))
        return self._scoped.setdefault((place, scope), replace(place, scope=scope))

    def _followed(self, place: Location) -> Location:
        for _ in range(MAX_LEVELS):
            schema = place.schema
            if isinstance(schema, bool) or "$ref" not in schema:
                return place
            if place.draft > 7 and len(schema.keys() & CONSTRAINTS) > 1:
                return place
            place = self.resolve(schema["$ref"], "$ref", place)
        raise unsupported("$ref", place.pointer, "leads back to itself before any value")

    def _under(self, parent: Location, *path: str | int) -> Location:
        node: Any = parent.schema
        pointer = parent.pointer
        for step in path:
            node = node[step]
            pointer += "/" + _escaped(step)
        return self._place(node, pointer, parent.base, parent.draft)

    def made(self, schema: Mapping[str, Any], like: Location) -> Location:
        """A subschema that a rewriting thought up."""
        return self._kept(Location(schema, like.pointer, like.base, 2020, like.scope))

    def _kept(self, place: Location) -> Location:
        """One object for each text and place."""
        key = (place.pointer, json.dumps(place.schema), place.scope)
        return self._made.setdefault(key, place)

    def resolve(self, reference: object, keyword: str, at: Location) -> Location:
        """What a reference leads to."""
        if not isinstance(reference, str):
            raise unsupported(keyword, at.pointer, "must be a string")
        return self._entered(self._target(reference, keyword, at), at.scope)

    def _target(self, reference: str, keyword: str, at: Location) -> Location:
        uri, _, fragment = _joined(at.base, reference).partition("#")
        fragment = unquote(fragment)
        start = self._resources.get(uri)
        if start is None:
            raise unsupported(keyword, at.pointer, f"{reference!r} is not in this document")
        if fragment and not fragment.startswith("/"):
            pointer = self._anchors.get((uri, fragment))
            if pointer is None:
                raise unsupported(keyword, at.pointer, f"no anchor {fragment!r} in this document")
            return self._places[self._outermost(pointer, fragment, keyword, at)]
        if keyword == "$recursiveRef":
            return self._places[self._outermost(start, "", keyword, at)]
        return self._walk(start, fragment, reference, at)

    def _outermost(self, pointer: str, name: str, keyword: str, at: Location) -> str:
        """Where a reference to an anchor leads; only from one dynamic anchor to another one."""
        place = self._places[pointer]
        is_dynamic = self._dynamic.get(place.base, {}).get(name) == pointer
        if keyword == "$ref" or not is_dynamic:
            return pointer
        return dict(at.scope).get(name, pointer)

    def _walk(self, pointer: str, fragment: str, reference: str, at: Location) -> Location:
        """Follow a JSON pointer from the root of a resource."""
        place = self._places[pointer]
        node: Any = place.schema
        base, draft = place.base, place.draft
        for step in fragment.split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            try:
                node = node[int(name)] if isinstance(node, list) else node[name]
            except (KeyError, IndexError, ValueError, TypeError):
                raise unsupported("$ref", at.pointer, f"{reference!r} leads nowhere") from None
            pointer += "/" + _escaped(name)
            if pointer in self._places:
                base, draft = self._places[pointer].base, self._places[pointer].draft
        return self._place(node, pointer, base, draft)

    def _place(self, node: Any, pointer: str, base: str, draft: int) -> Location:
        known = self._places.get(pointer)
        if known is not None and known.schema is node:
            return known
        if not isinstance(node, dict | bool):
            raise unsupported(
                pointer.rpartition("/")[2] or "schema",
                pointer,
                "a schema is an object or a boolean",
            )
        if isinstance(node, dict):
            draft = _draft(node, draft, pointer)
            name = node.get("id" if draft == 4 else "$id")
            if isinstance(name, str) and not ("$ref" in node and draft <= 7):
                base = self._named(_joined(base, name), pointer)
            check_names(node, pointer, unsupported)
        place = Location(node, pointer, base, draft)
        if known is not None:  # parts of several schemas that were made for the same place
            return self._kept(place)
        self._places[pointer] = place
        return place

    def _named(self, uri: str, pointer: str) -> str:
        uri, _, anchor = uri.partition("#")
        if anchor:  # until draft 7, an $id that is only a fragment is an anchor
            self._anchors[uri, anchor] = pointer
        if uri not in self._resources or not anchor:
            self._resources[uri] = pointer
        if pointer == "":
            self._resources[""] = ""
        return uri

    def _index(self, place: Location) -> None:
        waiting = [place]
        while waiting:
            place = waiting.pop()
            if isinstance(place.schema, bool):
                continue
            for keyword in ("$anchor", "$dynamicAnchor"):
                if isinstance(name := place.schema.get(keyword), str):
                    self._anchors[place.base, name] = place.pointer
            if isinstance(name := place.schema.get("$dynamicAnchor"), str):
                self._dynamic.setdefault(place.base, {})[name] = place.pointer
            if place.schema.get("$recursiveAnchor") is True:
                self._dynamic.setdefault(place.base, {})[""] = place.pointer
            waiting += self._subschemas(place)

    def _subschemas(self, place: Location) -> Iterator[Location]:
        assert isinstance(place.schema, dict)
        for keyword, value in place.schema.items():
            if keyword in SCHEMAS and isinstance(value, dict | bool):
                yield self._under(place, keyword)
            elif keyword in LISTS_OF_SCHEMAS and isinstance(value, list):
                for index in range(len(value)):
                    yield self._under(place, keyword, index)
            elif keyword in MAPS_OF_SCHEMAS and isinstance(value, dict):
                for name, item in value.items():
                    if keyword != "dependencies" or not isinstance(item, list):
                        yield self._under(place, keyword, name)


def _draft(node: object, default: int, pointer: str) -> int:
    name = node.get("$schema") if isinstance(node, dict) else None
    if name is None:
        return default
    known = DIALECTS.get(name.rstrip("#").removesuffix("/")) if isinstance(name, str) else None
    if known is None:
        raise unsupported("$schema", pointer, f"{name!r} is no dialect known here: {_KNOWN}")
    return known


_KNOWN = "drafts 4, 6, 7, 2019-09 and 2020-12 are"


def _joined(base: str, reference: str) -> str:
    if reference.startswith("#") or not reference:
        return base + reference
    return urljoin(base, reference)


def _escaped(step: str | int) -> str:
    return str(step).replace("~", "~0").replace("/", "~1")


def _check_limits(document: object) -> None:
    """Refuse what is too large before anything is made of it."""
    num_properties = num_values = num_nodes = 0
    waiting: list[tuple[Any, int]] = [([document], 0)]
    while waiting:
        node, level = waiting.pop()
        num_nodes += len(node)
        if (node and level >= MAX_LEVELS) or num_nodes > MAX_SCHEMA_BYTES:
            raise UnsupportedConstraint(f"the schema is nested deeper than {MAX_LEVELS} levels")
        if isinstance(node, dict):
            if not all(isinstance(name, str) for name in node):
                raise UnsupportedConstraint("a name in the schema is not a string")
            properties = node.get("properties")
            num_properties += len(properties) if isinstance(properties, dict) else 0
            values = node.get("enum")
            num_values += len(values) if isinstance(values, list) else 0
        items = node.values() if isinstance(node, dict) else node
        waiting += [(item, level + 1) for item in items if isinstance(item, dict | list | tuple)]
        if num_properties > MAX_PROPERTIES or num_values > MAX_ENUM_VALUES:
            raise UnsupportedConstraint(
                f"the schema has more than {MAX_PROPERTIES} properties "
                f"or {MAX_ENUM_VALUES} enum values"
            )
    try:
        num_bytes = len(json.dumps(document, allow_nan=False).encode())
    except (TypeError, ValueError) as error:
        raise UnsupportedConstraint(f"the schema is not JSON: {error}") from None
    if num_bytes > MAX_SCHEMA_BYTES:
        raise UnsupportedConstraint(f"the schema has more than {MAX_SCHEMA_BYTES} bytes")
