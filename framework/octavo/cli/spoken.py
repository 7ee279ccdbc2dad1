"""A text as it is written, and how fast it came."""

from __future__ import annotations

import time

from octavo.cli.terminal import Terminal
from octavo.wording import counted


class Spoken:
    """Writes pieces, keeps the text, and says its speed at the end."""

    def __init__(self, terminal: Terminal) -> None:
        self.num_tokens = 0
        self._terminal = terminal
        self._parts: list[str] = []
        self._began = time.monotonic()
        self._first: float | None = None

    def add(self, text: str, num_tokens: int) -> None:
        """Write what is new."""
        self._first = self._first or time.monotonic()
        self.num_tokens += num_tokens
        self._parts.append(text)
        self._terminal.write(text)

    def end(self, *, stopped: bool = False) -> str:
        """End the line and tell people the speed; return the text."""
        self._terminal.write(" ...\n" if stopped else "\n")
        self._terminal.remark(self._summary())
        return "".join(self._parts)

    def _summary(self) -> str:
        if self._first is None:
            return "no tokens"
        seconds = max(time.monotonic() - self._began, 1e-9)
        return (
            f"{counted(self.num_tokens, 'token')}, {self.num_tokens / seconds:.1f} a second, "
            f"first after {(self._first - self._began) * 1000:.0f} ms"
        )
