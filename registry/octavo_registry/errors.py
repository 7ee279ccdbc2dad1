"""The root of all errors of ours, and those that the contract itself raises."""

from __future__ import annotations


class OctavoError(Exception):
    """Root of every error that a caller can do something about; the message says what and how."""


class PluginError(OctavoError):
    """A plugin that cannot be loaded, or that breaks the contract; names the plugin and target."""


class UnknownNameError(OctavoError):
    """A name that no plugin registered; the message lists near matches."""


class DuplicateNameError(OctavoError):
    """One name registered with two targets and without ``replace=True``."""


class ManifestMismatchError(PluginError):
    """Two processes that must run the same plugins do not; names each difference."""
