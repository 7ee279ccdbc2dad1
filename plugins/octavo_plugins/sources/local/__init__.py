"""Folders on this machine as models."""

from octavo_registry import LazyRegistry, ModelSource, hookimpl

OCTAVO_API = "1"


@hookimpl
def register_sources(sources: LazyRegistry[ModelSource]) -> None:
    """Add the source "local"."""
    sources.add(
        "local",
        "octavo_plugins.sources.local.source:LocalSource",
        samples="octavo_plugins.sources.local.conformance:samples",
    )
