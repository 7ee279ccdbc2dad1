"""The progress bar of batches and of loads on a server."""

from __future__ import annotations

import time
from typing import Any, Final

REDRAW_SECONDS: Final = 0.2


class ProgressBar:
    """Shows finished requests and output tokens per second; silent unless ``shown``."""

    def __init__(self, num_requests: int, *, shown: bool) -> None:
        self._bar: Any = None
        if shown:
            from tqdm.auto import tqdm

            self._bar = tqdm(total=num_requests, unit="request", dynamic_ncols=True)
        self._began = self._drawn = time.monotonic()
        self._num_tokens = 0

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._draw(time.monotonic())
            self._bar.close()

    def advance(self, *, num_requests: int, num_tokens: int) -> None:
        """Count what one step finished and gave."""
        if self._bar is None:
            return
        self._num_tokens += num_tokens
        self._bar.update(num_requests)
        now = time.monotonic()
        if now - self._drawn > REDRAW_SECONDS:
            self._draw(now)

    def _draw(self, now: float) -> None:
        if self._num_tokens:  # texts that are read give none
            rate = self._num_tokens / max(now - self._began, 1e-9)
            self._bar.set_postfix_str(f"{rate:.0f} output tokens/s")
        self._drawn = now
