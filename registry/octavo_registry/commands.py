"""Subcommands of ``octavo``."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from octavo_registry.host import PluginHost


@runtime_checkable
class Command(Protocol):
    """One subcommand. Made without arguments, and imported only when it is the one called."""

    def configure(self, parser: ArgumentParser) -> None:
        """Declare the arguments; must stay cheap, as ``octavo NAME --help`` runs it."""
        ...

    def run(self, args: Namespace, host: PluginHost) -> int:
        """Do the work and return the exit code; an OctavoError becomes one line on stderr."""
        ...
