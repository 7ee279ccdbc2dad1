"""What a core schema may use and a backend must therefore be able to enforce, by name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

FEATURES: Mapping[str, str] = {
    "any": "Any JSON value, where the schema says nothing.",
    "null": "null.",
    "boolean": "true or false.",
    "enum": "One of some nulls, booleans, numbers and strings; a single one is written as const.",
    "enum:large": "A whole number in it that is no float, 2**53 + 1, or has 64 bits: 2**63.",
    "controls": "A control character in a value or name that has no short escape: U+0000, say.",
    "number": "Any number.",
    "number:minimum": "A number that is a bound or above it.",
    "number:maximum": "A number that is a bound or below it.",
    "number:exclusiveMinimum": "A number above a bound.",
    "number:exclusiveMaximum": "A number below a bound.",
    "number:bounds within a unit": "Two bounds less than 1 apart, and one left out is whole.",
    "number:multipleOf": "A multiple of a number that is not whole.",
    "number:multipleOf+bounds": "The same, within bounds.",
    "bounds:large": "A bound beyond 2**53, but for whole numbers up to 2**63 - 1.",
    "integer": "A whole number.",
    "integer:minimum": "A whole number that is a bound or above it.",
    "integer:maximum": "A whole number that is a bound or below it.",
    "integer:multipleOf": "A multiple of a whole number.",
    "integer:multipleOf+bounds": "The same, within bounds.",
    "multipleOf:large": "A multiple of a number of four digits or more: an automaton as large.",
    "string": "Any string.",
    "minLength": "A string of at least so many characters; an escape counts as one.",
    "maxLength": "A string of at most so many characters.",
    "pattern": "A string in which a pattern without lookaround and back references is found.",
    "pattern+length": "Such a string, of a bounded length.",
    "pattern:quotes": 'A class in it that takes all control characters and not " or a backslash.',
    "array": "A list whose items satisfy one schema.",
    "prefixItems": "A list whose first items satisfy a schema each.",
    "items:false": "A list that ends with its prefixItems.",
    "minItems": "A list of at least so many items.",
    "maxItems": "A list of at most so many items.",
    "object": "An object.",
    "properties": "Properties by name, in the order in which they are listed.",
    "properties:false": "A name that must not occur although others may.",
    "required": "Properties that must occur; all are listed in properties.",
    "additionalProperties:false": "No other names.",
    "additionalProperties:true": "Any other names, with any values, after those that are listed.",
    "additionalProperties:schema": "Any other names, with values that satisfy a schema.",
    "patternProperties": "Other names by patterns that no two of them match.",
    "patternProperties:quotes": "Such a class in a pattern for names.",
    "minProperties:one more": "At least one property beside those that are listed, all required.",
    "minProperties": "At least so many different names, more than one beside the required ones.",
    "maxProperties": "At most so many names, where all that are listed are required.",
    "anyOf": "One of several alternatives, which may overlap.",
    "$ref": "A definition that is used in several places.",
    "recursion": "A definition that contains itself.",
}

_LONG_ESCAPE = re.compile("[\\x00-\\x07\\x0b\\x0e-\\x1f]")


class Features:
    """The features that one core schema uses."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def note(self, *names: str) -> None:
        """Add some that occur."""
        for name in names:
            if name not in FEATURES:
                raise KeyError(name)
            self._names.add(name)

    def note_text(self, *texts: str) -> None:
        """Add what is special about texts that must be written exactly."""
        if any(_LONG_ESCAPE.search(text) for text in texts):
            self.note("controls")

    def note_recursion(self, definitions: Mapping[str, Any]) -> None:
        """Add recursion where a definition leads back to itself."""
        uses = {name: set(_references(core)) for name, core in definitions.items()}
        done: set[str] = set()
        while ready := {name for name, used in uses.items() if used <= done} - done:
            done |= ready
        if done != uses.keys():
            self._names.add("recursion")

    def names(self) -> frozenset[str]:
        """All of them."""
        return frozenset(self._names)


def _references(core: object) -> list[str]:
    """The definitions that a schema names."""
    found: list[str] = []
    waiting = [core]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            target = node.get("$ref")
            if isinstance(target, str):
                found.append(target.removeprefix("#/$defs/"))
            waiting += [item for key, item in node.items() if key not in ("enum", "const")]
        elif isinstance(node, list):
            waiting += node
    return found
