"""What ships with Octavo, for a first try without a network or a GPU: two models, and a pirate."""

from octavo_registry import (
    AdapterFormat,
    AdapterResolver,
    LazyRegistry,
    ModelSource,
    hookimpl,
)

OCTAVO_API = "1"


@hookimpl
def register_sources(sources: LazyRegistry[ModelSource]) -> None:
    """Add the source "embedded"."""
    sources.add(
        "embedded",
        "octavo_plugins.sources.embedded.source:EmbeddedSource",
        samples="octavo_plugins.sources.embedded.conformance:model",
    )


@hookimpl
def register_adapters(adapters: LazyRegistry[AdapterFormat | AdapterResolver]) -> None:
    """Add the resolver "embedded"."""
    adapters.add(
        "embedded",
        "octavo_plugins.sources.embedded.resolver:EmbeddedResolver",
        samples="octavo_plugins.sources.embedded.conformance:adapter",
    )
