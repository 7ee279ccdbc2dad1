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


async def final_outputs(
    streams: Sequence[AsyncGenerator[RequestOutput, None]],
) -> list[RequestOutput]:
    """The one output of each of several requests, in their order."""
    if len(streams) == 1:
        return [await final_output(streams[0])]
    async with aclosing(merge_streams(streams)) as merged:
        finals = {number: output async for number, output in merged}
    return [finals[number] for number in range(len(streams))]


async def merge_streams(
    streams: Sequence[AsyncGenerator[RequestOutput, None]],
) -> AsyncGenerator[tuple[int, RequestOutput], None]:
    """Yield outputs with their stream's number as they come; the first failure ends all."""
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
