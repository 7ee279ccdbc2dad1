"""The options of an engine as one value, with flags of a command line for them."""

from __future__ import annotations

from argparse import SUPPRESS, ArgumentParser, Namespace
from dataclasses import fields
from typing import Self

from octavo.cli.engine_flags import add_engine_flags
from octavo.cli.vllm_flags import tell_noted
from octavo.errors import ConfigError
from octavo.frontend.engine_keywords import EngineKeywords


class EngineArgs(EngineKeywords):
    """The keywords of ``LLM`` as fields, with the same names and defaults: ``LLM(**asdict(args))``.

    Values are checked where an engine is started with them.
    """

    @staticmethod
    def add_cli_args(parser: ArgumentParser) -> ArgumentParser:
        """Add ``--model``, a flag for each option, and ``--plugin``; returns the parser."""
        parser.add_argument("--model", default=SUPPRESS, help="a folder, or a name of a source's")
        add_engine_flags(parser, with_model=False)
        parser.add_argument(
            *("--plugin", "--plugins"),
            dest="plugins",
            action="append",
            default=SUPPRESS,
            metavar="MODULE",
            help="load one more plugin",
        )
        return parser

    @classmethod
    def from_cli_args(cls, args: Namespace) -> Self:
        """Return what was given of the flags; other entries of ``args`` are left out."""
        tell_noted(args)
        names = [each.name for each in fields(cls)]  # type: ignore[arg-type]
        given = {name: getattr(args, name) for name in names if hasattr(args, name)}
        if given.get("model") is None:
            raise ConfigError("give --model: a folder, or a name that a source plugin knows")
        return cls(**given)


class AsyncEngineArgs(EngineArgs):
    """``EngineArgs`` for engines of an event loop."""
