"""The command line."""

from octavo.cli.entry import main

__all__ = ["main"]
