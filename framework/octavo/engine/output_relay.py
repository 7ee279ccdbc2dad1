"""What a child process prints, passed on and remembered by its last line."""

from __future__ import annotations

import io
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Final

MAX_LINE_CHARS: Final = 300


class OutputRelay:
    """Copies a pipe to this process's standard error in a thread, until the pipe ends."""

    def __init__(self, pipe: IO[bytes], ended: Callable[[], None]) -> None:
        """``ended`` is called in that thread after the pipe's end."""
        self._ended = ended
        self._last = ""
        # Line ends stay as they are, so that a progress bar's carriage returns still work.
        self._text = io.TextIOWrapper(pipe, encoding="utf-8", errors="replace", newline="")
        self._thread = threading.Thread(target=self._run, name="engine output", daemon=True)
        self._thread.start()

    def last_line(self, wait_seconds: float) -> str:
        """Return the last line that was not blank; waits for the pipe's end, but not for long."""
        self._thread.join(wait_seconds)
        return self._last[:MAX_LINE_CHARS]

    def _run(self) -> None:
        with self._text:
            for line in self._text:
                self._last = line.strip() or self._last
                # Whatever became of our stderr: a pipe that nobody empties would stop the child.
                with suppress(AttributeError, OSError, ValueError):
                    sys.stderr.write(line)
        self._ended()


def how_it_ended(code: int) -> str:
    """Say what a process's exit code means."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
