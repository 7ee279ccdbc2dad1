"""Several requests that answer one call, as one stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing

from octavo.outputs import RequestOutput


async def final_output(outputs: AsyncIterator[RequestOutput]) -> RequestOutput:
    """The one output of a request of the kind "final"."""
    async for output in outputs:
        final = output
    return final


async def merge_streams(
    streams: Sequence[AsyncGenerator[RequestOutput, None]],
) -> AsyncIterator[tuple[int, RequestOutput]]:
    """Yield outputs with their stream's number as they come; the first failure ends all."""
    if len(streams) == 1:
        async with aclosing(streams[0]) as stream:
            async for output in stream:
                yield 0, output
        return
    news: asyncio.Queue[tuple[int, RequestOutput | Exception | None]] = asyncio.Queue()
    taken = [asyncio.Event() for _ in streams]

    async def pump(number: int, stream: AsyncGenerator[RequestOutput, None]) -> None:
        try:
            async with aclosing(stream):
                async for output in stream:
                    news.put_nowait((number, output))
                    # A stream whose output waits merges what follows into the next.
                    await taken[number].wait()
                    taken[number].clear()
        except Exception as error:
            news.put_nowait((number, error))
        else:
            news.put_nowait((number, None))

    tasks = []
    num_open = len(streams)
    try:
        for each in enumerate(streams):
            tasks.append(asyncio.create_task(pump(*each)))
            await asyncio.sleep(0)  # a prompt is read at its stream's start: others have their turn
        while num_open:
            number, arrival = await news.get()
            if isinstance(arrival, Exception):
                raise arrival
            if arrival is None:
                num_open -= 1
            else:
                yield number, arrival
                taken[number].set()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
