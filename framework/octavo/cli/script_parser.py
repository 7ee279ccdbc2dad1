"""The parser of a program that starts an engine itself."""

from __future__ import annotations

import sys
from typing import Any

from octavo.cli.parser import Parser
from octavo.cli.spelling import spelled
from octavo.errors import ConfigError


class ScriptParser(Parser):
    """What vLLM's documents call ``FlexibleArgumentParser``: options in all of vLLM's spellings.

    A line that cannot be read ends the program and says why, as with ``argparse``.
    """

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse all; options that the program declared with underscores keep them."""
        given = sys.argv[1:] if args is None else list(args)
        try:
            return super().parse_args(spelled(given, self), namespace)
        except ConfigError as error:
            self.exit(2, f"error: {error}\n")
