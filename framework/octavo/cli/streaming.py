"""One text at a time from an engine, written as it comes; shared by generate, complete and chat."""

from __future__ import annotations

import asyncio
import time
from argparse import Namespace
from collections.abc import AsyncGenerator
from typing import Any

from octavo.async_llm import AsyncLLM
from octavo.cli.engine_flags import engine_keywords
from octavo.cli.terminal import Terminal
from octavo.outputs import RequestOutput
from octavo_registry import PluginHost


class StreamingEngine:
    """An engine in this process, and the event loop of its requests; a context manager."""

    def __init__(self, args: Namespace, host: PluginHost, terminal: Terminal) -> None:
        self._terminal = terminal
        with terminal.working(f"loading {args.model}"):
            self.llm = AsyncLLM(**engine_keywords(args, host), engine_process=False)
        self._runner = asyncio.Runner()

    def __enter__(self) -> StreamingEngine:
        return self

    def __exit__(self, *error: object) -> None:
        self._runner.close()
        self.llm.close()

    def write(self, deltas: AsyncGenerator[RequestOutput, None], *, stoppable: bool = False) -> str:
        """Write a request's text to its end, or where it is ``stoppable`` to an interrupt.

        Returns the text.
        """
        parts: list[str] = []
        began = time.monotonic()
        facts: dict[str, Any] = {"tokens": 0, "first": None}

        async def read() -> None:
            async for output in deltas:
                for completion in output.outputs:
                    facts["first"] = facts["first"] or time.monotonic()
                    facts["tokens"] += len(completion.token_ids)
                    parts.append(completion.text)
                    self._terminal.write(completion.text)

        try:
            self._runner.run(read())
        except KeyboardInterrupt:
            if not stoppable:
                raise
            self._terminal.write(" ...")
        self._terminal.write("\n")
        self._terminal.remark(_summary(facts["tokens"], began, facts["first"]))
        return "".join(parts)


def _summary(num_tokens: int, began: float, first: float | None) -> str:
    if first is None:
        return "no tokens"
    seconds = max(time.monotonic() - began, 1e-9)
    first_ms = (first - began) * 1000
    return (
        f"{num_tokens} tokens, {num_tokens / seconds:.1f} a second, first after {first_ms:.0f} ms"
    )
