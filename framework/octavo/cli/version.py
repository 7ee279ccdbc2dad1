"""``octavo version``."""

from __future__ import annotations

import platform
import sys
from argparse import ArgumentParser, Namespace

import octavo
from octavo_registry import API_VERSION, PluginHost


class VersionCommand:
    """Shows the versions of Octavo, its plugin API and Python."""

    def configure(self, parser: ArgumentParser) -> None:
        """Take no arguments."""

    def run(self, args: Namespace, host: PluginHost) -> int:
        """Write one line."""
        python = platform.python_version()
        sys.stdout.write(
            f"octavo {octavo.__version__} (plugin API {API_VERSION}, Python {python})\n"
        )
        return 0
