"""``octavo version``."""

from __future__ import annotations

import json
import platform
import sys
from argparse import ArgumentParser, Namespace

from octavo.version import __version__
from octavo_registry import API_VERSION, PluginHost


class VersionCommand:
    """Shows the versions of Octavo, its plugin API and Python."""

    def configure(self, parser: ArgumentParser) -> None:
        """Declare the form of the answer."""
        parser.add_argument("--json", action="store_true", help="write JSON")

    def run(self, args: Namespace, host: PluginHost) -> int:
        """Write one line."""
        versions = {
            "octavo": __version__,
            "plugin_api": API_VERSION,
            "python": platform.python_version(),
        }
        line = "octavo {octavo} (plugin API {plugin_api}, Python {python})".format(**versions)
        sys.stdout.write((json.dumps(versions) if args.json else line) + "\n")
        return 0
