"""``octavo chat``."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from octavo.cli.lines import read_lines
from octavo.cli.speaking import Speaker, add_speaker_flags, open_speaker
from octavo.cli.terminal import Terminal
from octavo.errors import OctavoError, PromptTooLongError
from octavo_registry import PluginHost
from octavo_registry.naming import close_or_known

COMMANDS = {
    "/system": "TEXT: set the system message and start anew; without TEXT: none",
    "/reset": "forget the conversation; the system message stays",
    "/exit": "end (as Ctrl-D does)",
    "/help": "show this",
}


class ChatCommand:
    """A conversation with a model; answers are written as they come."""

    def configure(self, parser: ArgumentParser) -> None:
        """Declare the system message, and the model or the server."""
        parser.usage = "octavo chat MODEL [options]\n       octavo chat --url URL [MODEL] [options]"
        parser.add_argument("--system", metavar="TEXT", default="", help="a system message")
        add_speaker_flags(parser)

    def run(self, args: Namespace, host: PluginHost) -> int:
        """Go on until the input ends."""
        terminal = Terminal()
        with open_speaker(args, host, terminal, max_tokens=None) as speaker:
            conversation = TerminalChat(speaker, terminal, system=args.system)
            terminal.remark("Ctrl-C stops an answer, Ctrl-D ends; /help shows commands.")
            for line, refusals in read_lines(terminal):
                with refusals:
                    if not conversation.take(line):
                        break
        return 0


class TerminalChat:
    """What was said, and what the next line does with it."""

    def __init__(self, speaker: Speaker, terminal: Terminal, *, system: str) -> None:
        self._speaker, self._terminal = speaker, terminal
        self._start(system)

    def take(self, line: str) -> bool:
        """Answer a message or do a command; False ends the conversation."""
        if not line.startswith("/"):
            self._answer(line)
            return True
        command, _, rest = line.partition(" ")
        match command:
            case "/exit":
                return False
            case "/reset":
                self._start(self._system)
                self._terminal.remark("What was said is forgotten.")
            case "/system":
                self._start(rest.strip())
                has = "with this" if self._system else "without a"
                self._terminal.remark(f"A new conversation, {has} system message.")
            case "/help":
                self._terminal.rows(list(COMMANDS.items()))
            case _:
                hint = close_or_known(command, COMMANDS)
                self._terminal.write(f"there is no command {command!r}; {hint}\n", "red")
        return True

    def _start(self, system: str) -> None:
        self._system = system
        self._messages = [{"role": "system", "content": system}] if system else []

    def _answer(self, text: str) -> None:
        """A message that was refused is forgotten; an answer that was stopped counts as it is."""
        self._messages.append({"role": "user", "content": text})
        try:
            answer = self._speaker.chat(self._messages)
        except OctavoError as error:
            self._messages.pop()
            is_first = all(message["role"] == "system" for message in self._messages)
            if isinstance(error, PromptTooLongError) and not is_first:
                raise PromptTooLongError(
                    f"the conversation is full; /reset forgets it and begins anew ({error})"
                ) from error
            raise
        self._messages.append({"role": "assistant", "content": answer})
