"""The hooks: their specifications, and the marker of implementations."""

from octavo_registry.hooks.markers import hookimpl

__all__ = ["hookimpl"]
