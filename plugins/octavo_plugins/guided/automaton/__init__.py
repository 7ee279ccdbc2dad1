"""The guided backend of byte automata: schemas, patterns and choices as tables for a device."""

from octavo_plugins.guided.automaton.keywords import KEYWORDS
from octavo_registry import LazyRegistry, hookimpl
from octavo_registry.guided import GuidedBackend

OCTAVO_API = "1"


@hookimpl
def register_guided_backends(backends: LazyRegistry[GuidedBackend]) -> None:
    """Add ``automaton``; by itself it is taken where the engine makes masks on its device."""
    backends.add(
        "automaton",
        "octavo_plugins.guided.automaton.backend:Backend",
        keywords=KEYWORDS,
        rank=5,
        native=True,
        automata=True,
    )
