"""Adapters in folders that are looked at whenever one is asked for."""

from octavo_registry import AdapterFormat, AdapterResolver, LazyRegistry, hookimpl

OCTAVO_API = "1"


@hookimpl
def register_adapters(adapters: LazyRegistry[AdapterFormat | AdapterResolver]) -> None:
    """Add the resolver "watched"."""
    adapters.add(
        "watched",
        "octavo_plugins.adapters.watched.resolver:WatchedResolver",
        samples="octavo_plugins.adapters.watched.conformance:samples",
    )
