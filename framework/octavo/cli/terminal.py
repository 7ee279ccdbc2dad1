"""Where commands write: colours for people, plain text for pipes and files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any


class Terminal:
    """Results go to standard output, remarks to standard error; rich is loaded for people only."""

    def __init__(self) -> None:
        self.for_people = sys.stdout.isatty()
        self.tells_people = sys.stderr.isatty()

    def write(self, text: str, style: str = "") -> None:
        """Write at once, as a stream does; without a newline of its own."""
        if self.for_people and style:
            from rich.text import Text

            _console(stderr=False).print(Text(text, style), end="", soft_wrap=True)
        else:
            sys.stdout.write(text)
        sys.stdout.flush()

    def remark(self, text: str) -> None:
        """Tell people something beside the result; a pipe's reader never sees it."""
        if self.tells_people:
            from rich.text import Text

            _console(stderr=True).print(Text(text, "dim"), soft_wrap=True)

    def rows(self, rows: Sequence[Sequence[str]], styles: Sequence[str] | None = None) -> None:
        """Write columns that line up; ``styles`` are by row."""
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for index, row in enumerate(rows):
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
            self.write("  ".join(cells).rstrip(), styles[index] if styles else "")
            self.write("\n")

    @contextmanager
    def working(self, text: str) -> Iterator[Callable[[str], None]]:
        """Show that something takes its time; what is yielded tells how far it is."""
        if not self.tells_people:
            yield lambda text: None
            return
        with _console(stderr=True).status(text) as status:
            yield status.update


def _console(*, stderr: bool) -> Any:
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, markup=False)
