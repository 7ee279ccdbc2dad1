"""Errors for what a plugin's tokenizer has raised: the server's, with the plugin's name."""

from __future__ import annotations

from collections.abc import Callable

from octavo.errors import PluginError
from octavo_registry import PluginHost
from octavo_registry.faults import one_line

TokenizerFailure = Callable[[str, BaseException], PluginError]
"""The error for what a tokenizer's method has raised."""


def failure_of(host: PluginHost, mode: str) -> TokenizerFailure:
    """Return what names the plugin of a tokenizer in an error, and counts it."""

    def failed(method: str, error: BaseException) -> PluginError:
        plugin = host.tokenizers.info(mode).plugin
        return host.faults.failure(plugin, f"tokenizer {mode!r}, {method}", error)

    return failed


def unnamed_failure(method: str, error: BaseException) -> PluginError:
    """The error of a tokenizer that no plugin has registered."""
    return PluginError(f"the tokenizer failed in {method}: {one_line(error)}")
