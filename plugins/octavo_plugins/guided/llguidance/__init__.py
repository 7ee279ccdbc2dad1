"""The guided backend on llguidance: an Earley parser over a lexer of regular expressions."""

from octavo_plugins.guided.llguidance.keywords import KEYWORDS
from octavo_registry import LazyRegistry, hookimpl
from octavo_registry.guided import GuidedBackend

OCTAVO_API = "1"


@hookimpl
def register_guided_backends(backends: LazyRegistry[GuidedBackend]) -> None:
    """Add ``llguidance``."""
    backends.add(
        "llguidance",
        "octavo_plugins.guided.llguidance.backend:Backend",
        keywords=KEYWORDS,
        rank=10,
        native=True,
    )
