"""Adapters by the paths of their folders."""

from octavo_registry import AdapterFormat, AdapterResolver, LazyRegistry, hookimpl

OCTAVO_API = "1"


@hookimpl
def register_adapters(adapters: LazyRegistry[AdapterFormat | AdapterResolver]) -> None:
    """Add the resolver "local"."""
    adapters.add(
        "local",
        "octavo_plugins.adapters.local.resolver:LocalResolver",
        samples="octavo_plugins.adapters.local.conformance:samples",
    )
