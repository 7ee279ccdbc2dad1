"""The two decorators of the contract."""

import pluggy

PROJECT = "octavo"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks a function of a plugin as an implementation of the hook of the same name."""
