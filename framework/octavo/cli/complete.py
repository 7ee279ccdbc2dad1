"""``octavo complete``: lines in, their continuations out."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from octavo.cli.lines import read_lines
from octavo.cli.speaking import add_speaker_flags, open_speaker
from octavo.cli.terminal import Terminal
from octavo_registry import PluginHost

MAX_TOKENS = 256


class CompleteCommand:
    """Continues each line that is typed, with no memory of the ones before."""

    def configure(self, parser: ArgumentParser) -> None:
        """Declare the model or the server."""
        parser.usage = (
            "octavo complete MODEL [options]\n       octavo complete --url URL [MODEL] [options]"
        )
        add_speaker_flags(parser)

    def run(self, args: Namespace, host: PluginHost) -> int:
        """Go on until the input ends."""
        terminal = Terminal()
        with open_speaker(args, host, terminal, max_tokens=MAX_TOKENS) as speaker:
            terminal.remark("Type the beginning of a text. Ctrl-C stops one, Ctrl-D ends.")
            for line, refusals in read_lines(terminal):
                with refusals:
                    speaker.complete(line)
        return 0
