"""Lines that a person types, or that come from a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from octavo.cli.terminal import Terminal
from octavo.errors import EngineDeadError, OctavoError


def read_lines(terminal: Terminal) -> Iterator[tuple[str, AbstractContextManager[object]]]:
    """Yield each line that is not empty, and a context in which to answer it.

    In it a refusal is told to a person, who goes on; from a pipe it ends the command.
    """
    if not sys.stdin.isatty():
        for line in sys.stdin:
            if line.strip():
                yield line.rstrip("\r\n"), nullcontext()  # Windows ends lines with both
        return
    import readline  # noqa: F401 (its import alone makes input() a line editor with a history)

    while True:
        try:
            line = input("> ")
        except KeyboardInterrupt:
            terminal.write("\n")
            continue
        except EOFError:
            terminal.write("\n")
            return
        if line.strip():
            yield line, _told(terminal)


@contextmanager
def _told(terminal: Terminal) -> Iterator[None]:
    try:
        yield
    except EngineDeadError:
        raise
    except OctavoError as error:
        terminal.write(f"{error}\n", "red")
