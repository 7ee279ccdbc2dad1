"""The root of all errors of ours, and those that the contract itself raises."""

from __future__ import annotations


class OctavoError(Exception):
    """Root of every error that a caller can do something about; the message says what and how."""


def is_framework_error(error: OctavoError) -> bool:
    """Whether the class says what went wrong: not the root, nor one of a plugin's own."""
    kind = type(error)
    ours = kind.__module__.partition(".")[0] in ("octavo", "octavo_registry")
    return isinstance(error, PluginError) or (ours and kind is not OctavoError)


class PluginError(OctavoError):
    """A plugin that cannot be loaded, or that breaks the contract; names the plugin and target."""


class UnknownNameError(OctavoError):
    """A name that no plugin registered; the message lists near matches."""


class DuplicateNameError(OctavoError):
    """One name registered with two targets and without ``replace=True``."""


class ManifestMismatchError(PluginError):
    """Two processes that must run the same plugins do not; names each difference."""
