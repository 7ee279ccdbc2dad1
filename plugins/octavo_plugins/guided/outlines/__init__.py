"""The guided backend on the core of Outlines: one automaton of tokens, made ahead of time."""

from octavo_plugins.guided.text_keywords import TEXT_KEYWORDS
from octavo_registry import LazyRegistry, hookimpl
from octavo_registry.guided import GuidedBackend

OCTAVO_API = "1"


@hookimpl
def register_guided_backends(backends: LazyRegistry[GuidedBackend]) -> None:
    """Add ``outlines``."""
    backends.add(
        "outlines",
        "octavo_plugins.guided.outlines.backend:Backend",
        keywords=TEXT_KEYWORDS,
        rank=30,
    )
