"""Byte automata of constraints; a vocabulary is needed for guides alone."""

from __future__ import annotations

from octavo.errors import UnsupportedConstraint
from octavo.guided.byte_automaton import ByteAutomatonGuide
from octavo.guided.schema.regex import TooManyStates
from octavo.guided.schema.regex_parse import PatternError
from octavo_plugins.guided.automaton.levels import bounded
from octavo_plugins.guided.automaton.parts import DONE, Graph
from octavo_plugins.guided.automaton.patterns import pattern, unicode_dialect
from octavo_plugins.guided.automaton.schemas import SchemaWriter
from octavo_plugins.guided.automaton.subsets import Subsets
from octavo_plugins.guided.automaton.tables import automaton_of
from octavo_registry.guided import ByteAutomaton, Constraint, GuideVocabulary


class Backend:
    """Enforces schemas, patterns and choices."""

    def __init__(self, vocabulary: GuideVocabulary) -> None:
        self._vocabulary = vocabulary
        unicode_dialect()  # takes a fifth of a second, which is no constraint's to pay

    @staticmethod
    def automaton(constraint: Constraint) -> ByteAutomaton:
        """The constraint's table, within limits on its size and on the work."""
        graph = Graph()
        try:
            start = _start(graph, constraint)
            return automaton_of(bounded(Subsets(graph, start).rows))
        except RecursionError:
            raise UnsupportedConstraint("the constraint is nested too deep") from None
        except TooManyStates:
            raise UnsupportedConstraint("the constraint has too many states for a table") from None
        except PatternError as error:
            raise UnsupportedConstraint(f"{constraint.kind}: {error}") from None

    def compile(self, constraint: Constraint) -> ByteAutomatonGuide:
        """Return the constraint's automaton as a guide."""
        return ByteAutomatonGuide(self.automaton(constraint), self._vocabulary)


def _start(graph: Graph, constraint: Constraint) -> int:
    value = constraint.value
    match constraint.kind:
        case "json":
            definitions = value.get("$defs", {}) if isinstance(value, dict) else {}
            return SchemaWriter(graph, definitions).value(value, DONE)
        case "regex":
            return pattern(graph, value, DONE)
        case "choice":
            return graph.fork(*(graph.literal(text.encode(), DONE) for text in value))
        case kind:
            raise UnsupportedConstraint(f"{kind} cannot be written as an automaton")
