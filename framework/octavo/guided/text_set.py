"""Constraints as sets of texts, for backends that know nothing but patterns."""

from __future__ import annotations

from octavo.errors import UnsupportedConstraint
from octavo.guided.schema.regex import NOTHING, Regex, alt, text
from octavo.guided.schema.text import LEVELS_OF_ANY, json_texts, whole_pattern
from octavo_registry.guided import Constraint


def texts_of(constraint: Constraint, levels_of_any: int = LEVELS_OF_ANY) -> Regex:
    """The texts that satisfy it; raises for kinds that are no such set, and where there is none."""
    match constraint.kind:
        case "json":
            found = json_texts(constraint.value, levels_of_any)
        case "regex":
            found = whole_pattern(constraint.value)
        case "choice":
            found = alt(*map(text, constraint.value))
        case _:
            raise UnsupportedConstraint(f"{constraint.kind} cannot be written as a pattern")
    if found == NOTHING:
        raise UnsupportedConstraint(f"no text satisfies the {constraint.kind} constraint")
    return found
