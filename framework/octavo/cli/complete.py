"""``octavo complete MODEL``: lines in, their continuations out."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from octavo.cli.engine_flags import (
    add_engine_flags,
    add_sampling_flags,
    given_sampling,
    sampling_params,
)
from octavo.cli.lines import read_lines
from octavo.cli.terminal import Terminal
from octavo_registry import PluginHost

MAX_TOKENS = 256


class CompleteCommand:
    """Continues each line that is typed, with no memory of the ones before."""

    def configure(self, parser: ArgumentParser) -> None:
        """Declare the flags of engine and sampling."""
        parser.usage = "octavo complete MODEL [options]"
        add_engine_flags(parser)
        add_sampling_flags(parser)

    def run(self, args: Namespace, host: PluginHost) -> int:
        """Go on until the input ends."""
        given = given_sampling(args, output_kind="delta")
        from octavo.cli.streaming import StreamingEngine  # loads the engine

        terminal = Terminal()
        with StreamingEngine(args, host, terminal) as engine:
            default = engine.llm.get_default_sampling_params()
            params = sampling_params(default, given, max_tokens=MAX_TOKENS)
            terminal.remark("Type the beginning of a text. Ctrl-C stops one, Ctrl-D ends.")
            for line, refusals in read_lines(terminal):
                with refusals:
                    engine.write(engine.llm.generate(line, params), stoppable=sys.stdin.isatty())
        return 0
