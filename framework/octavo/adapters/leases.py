"""Adapters for requests of an event loop, which shall not wait while one is read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from octavo.adapters.loaded import LoadedAdapter, LoadedAdapters
from octavo.params import LoRARequest


class AdapterLeases:
    """Reads in a thread of its own: prompts need the loop's, and loads take turns in any case."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "octavo-adapters")

    async def lease(
        self, adapters: LoadedAdapters, request: LoRARequest | None, check_open: Callable[[], None]
    ) -> LoadedAdapter | None:
        """Keep the request's adapter until ``release``, or none; ``check_open`` of its engine."""
        if request is None:
            adapters.num_requests[""] += 1
            return None
        leased = adapters.lease(request)
        if leased is not None:
            return leased
        loading = self._thread.submit(_load, adapters, request, check_open)
        try:
            return await asyncio.wrap_future(loading)
        except asyncio.CancelledError:
            loading.add_done_callback(partial(_release, adapters))
            raise

    def close(self) -> None:
        """Begin no more loads."""
        self._thread.shutdown(wait=False)


def _load(
    adapters: LoadedAdapters, request: LoRARequest, check_open: Callable[[], None]
) -> LoadedAdapter:
    check_open()  # its turn may come after the end
    return adapters.load(request)


def _release(adapters: LoadedAdapters, loading: Future[LoadedAdapter]) -> None:
    """Nobody waits any more for what was being loaded."""
    if not loading.cancelled() and loading.exception() is None:
        adapters.release(loading.result())
