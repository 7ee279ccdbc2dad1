"""Several requests that answer one call, as one stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

from octavo.outputs import RequestOutput


async def merge_streams(
    streams: Sequence[AsyncGenerator[RequestOutput, None]],
) -> AsyncIterator[tuple[int, RequestOutput]]:
    """Yield outputs with their stream's number as they come; the first failure ends all."""
    if len(streams) == 1:
        async for output in streams[0]:
            yield 0, output
        return
    waiting = {
        asyncio.ensure_future(anext(stream)): number for number, stream in enumerate(streams)
    }
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=waiting.__getitem__):
                number = waiting.pop(task)
                try:
                    output = task.result()
                except StopAsyncIteration:
                    continue
                if not output.finished:
                    waiting[asyncio.ensure_future(anext(streams[number]))] = number
                yield number, output
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for stream in streams:
            await stream.aclose()
