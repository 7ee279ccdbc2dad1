"""The models that ship with Octavo, for a first try without a network or a GPU."""

from octavo_registry import LazyRegistry, ModelSource, hookimpl

OCTAVO_API = "1"


@hookimpl
def register_sources(sources: LazyRegistry[ModelSource]) -> None:
    """Add the source "embedded"."""
    sources.add("embedded", "octavo_plugins.sources.embedded.source:EmbeddedSource")
