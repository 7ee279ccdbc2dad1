"""One text at a time from an engine, written as it comes; shared by generate, complete and chat."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import AsyncGenerator

from octavo.cli.engine_flags import engine_keywords
from octavo.cli.spoken import Spoken
from octavo.cli.terminal import Terminal
from octavo.frontend.async_llm import AsyncLLM
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
        spoken = Spoken(self._terminal)

        async def read() -> None:
            async for output in deltas:
                for completion in output.outputs:
                    spoken.add(completion.text, len(completion.token_ids))

        try:
            self._runner.run(read())
        except KeyboardInterrupt:
            if not stoppable:
                raise
            return spoken.end(stopped=True)
        return spoken.end()
