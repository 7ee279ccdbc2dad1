"""Subcommands: their arguments can be declared, and what their samples ask for is done."""

from __future__ import annotations

import contextlib
import io
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from octavo.testing.report import Check, tried, unclaimed
from octavo.testing.samples import samples_of
from octavo_registry import PluginHost


def check_command(host: PluginHost, name: str) -> list[Check]:
    """Declare the arguments and show the help; run the command with what its ``samples`` give."""
    title = f"command {name!r}"
    declared = tried(f"{title} declares its arguments", _undeclared(host, name))
    runs = f"{title} runs"
    if not host.commands.info(name).metadata["samples"]:
        missing = "samples= are not given; only its arguments were looked at"
        return [declared, unclaimed(runs, missing)]
    with TemporaryDirectory(prefix="octavo-kit-") as folder:
        arguments: Sequence[Sequence[str]] = samples_of(host.commands, name, Path(folder))
        return [declared, tried(runs, _failures(host, name, arguments))]


def _undeclared(host: PluginHost, name: str) -> Iterator[str]:
    parser = _parser(host, name)
    if not parser.format_help().strip():
        yield "its help is empty"
    if not host.commands.info(name).metadata["help"]:
        yield "commands.add has no help=, so that `octavo --help` shows nothing of it"


def _failures(host: PluginHost, name: str, samples: Sequence[Sequence[str]]) -> Iterator[str]:
    for arguments in samples:
        said = io.StringIO()
        command = f"octavo {name} {' '.join(arguments)}"
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code: Any
            try:
                parsed = _parser(host, name).parse_args(list(arguments))
                code = host.commands.make(name).run(parsed, host)
            except SystemExit as end:
                code = end.code
        if type(code) is not int:
            yield f"{command} returned {code!r}, not an exit code"
        elif code != 0:
            yield f"{command} ended with {code}: {said.getvalue()[-300:]}"


def _parser(host: PluginHost, name: str) -> ArgumentParser:
    parser = ArgumentParser(prog=f"octavo {name}")
    command: Any = host.commands.make(name)
    answer = command.configure(parser)
    if answer is not None:
        raise TypeError(f"configure returned {type(answer).__name__}, not None")
    return parser
