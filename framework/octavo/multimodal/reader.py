"""From what a prompt brings to decoded items, in threads of their own and under limits."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import closing, suppress
from functools import partial
from threading import Lock
from typing import Any, Final

from octavo.config.media import MediaConfig
from octavo.errors import QueueFullError
from octavo.multimodal.budget import MediaBudget
from octavo.multimodal.encoded import EncodedDecoder
from octavo.multimodal.errors import BadMediaError, MediaTooLargeError, about
from octavo.multimodal.fetch import MediaFetcher
from octavo.multimodal.given import GivenMedia, content_hash, split_media
from octavo.multimodal.local import read_file
from octavo.multimodal.names import Names
from octavo.multimodal.pool import WorkPool
from octavo_registry import MediaItem, ModalityDecoder, PluginHost
from octavo_registry.lazy import FRAMEWORK
from octavo_registry.modalities import MediaError

Options = Mapping[str, Mapping[str, Any]]
"""What the model asks of decoders, by modality."""
IsCached = Callable[[str], bool]

FETCH_THREADS: Final = 16
MAX_WAITING: Final = 1024
"""Items that are fetched or wait for it, and the same again of those that are decoded."""
MAX_NAMED: Final = 8192
"""Uuids whose item is known."""
GRACE_SECONDS: Final = 0.5
"""For a decoder to see by itself that its time is over."""


class MediaReader:
    """Reads the media of requests; one a process, used from any thread."""

    def __init__(self, host: PluginHost, config: MediaConfig) -> None:
        self._host = host
        self._config = config
        self._fetcher = MediaFetcher(config)
        self._decoders: dict[str, ModalityDecoder] = {}
        self._lock = Lock()
        self._named = Names(MAX_NAMED)
        self._fetching = WorkPool(
            "fetching of media", num_threads=FETCH_THREADS, max_calls=MAX_WAITING
        )
        self._decoding = WorkPool(
            "decoding of media", num_threads=config.num_threads, max_calls=MAX_WAITING
        )

    def load(self, modalities: Iterable[str]) -> None:
        """Import what decodes them, for which no request is to wait: tenths of a second, or more.

        Nothing is asked of those that no request may have, or no plugin decodes.
        """
        for modality in modalities:
            if modality in self._host.modalities and self._config.max_items(modality):
                self._decoder(modality)

    def split(
        self,
        data: Mapping[str, Any],
        uuids: Mapping[str, Any] | None = None,
        *,
        takes_rows: bool = False,
    ) -> list[GivenMedia]:
        """Return the items of a ``multi_modal_data``; nothing is read yet."""
        decoders = {name: self._decoder(name) for name in data}
        modalities = self._host.modalities
        strings = {name for name in data if modalities.info(name).metadata["strings"]}
        return split_media(data, uuids, decoders, takes_rows=takes_rows, strings=strings)

    async def read(
        self,
        given: Sequence[GivenMedia],
        options: Options | None = None,
        is_cached: IsCached = lambda content_hash: False,
        *,
        salt: str = "",
    ) -> list[MediaItem]:
        """Return the items of one request, in order.

        An item of whose ``content_hash`` ``is_cached`` is true is not decoded: its value is None.
        A uuid names the item that came with it last among requests of one ``salt``, so that one
        without data stands for it; to other salts it is another item's name.
        Cancelling this drops what has not begun. A QueueFullError means that others come first.
        """
        items: list[MediaItem] = []
        with closing(self._reading(items, given, options or {}, is_cached, salt)) as waits:
            for future, seconds in waits:
                with suppress(Exception):  # the time's end, or the future's own failure
                    await asyncio.wait_for(asyncio.wrap_future(future), seconds)
        return items

    def read_blocking(
        self,
        given: Sequence[GivenMedia],
        options: Options | None = None,
        is_cached: IsCached = lambda content_hash: False,
        *,
        salt: str = "",
    ) -> list[MediaItem]:
        """Do the same in the caller's thread."""
        items: list[MediaItem] = []
        with closing(self._reading(items, given, options or {}, is_cached, salt)) as waits:
            for future, seconds in waits:
                wait([future], seconds)
        return items

    def close(self) -> None:
        """Drop what waits; what runs goes on to its end."""
        self._fetching.close()
        self._decoding.close()

    def _counted(self, given: Sequence[GivenMedia]) -> MediaBudget:
        budget = MediaBudget(self._config)
        for item in given:
            with about(item.place):
                budget.add_item(item.modality)
        return budget

    def _reading(
        self,
        items: list[MediaItem],
        given: Sequence[GivenMedia],
        options: Options,
        is_cached: IsCached,
        salt: str,
    ) -> Generator[tuple[Future[Any], float], None, None]:
        """Append the items; each future that it gives is to be waited for, so many seconds at most.

        Closing it drops what has not begun.
        """
        budget = self._counted(given)
        futures: list[Future[Any]] = []
        try:
            for item in given:
                pool = self._fetching if item.is_elsewhere else self._decoding
                futures.append(pool.submit(partial(self._bytes, item, budget)))
            # The fetcher has a time-out of its own; this one is the queue's.
            seconds = 2 * self._config.media_fetch_timeout + self._config.media_decode_timeout
            encoded: list[bytes | None] = []
            for future in futures:
                yield future, seconds
                if future.cancel() or not future.done():
                    raise QueueFullError("media waits too long to be read; try again later")
                encoded.append(future.result())
            deadline = time.monotonic() + self._config.media_decode_timeout
            for item, data in zip(given, encoded, strict=True):
                chosen = options.get(item.content_kind, {})
                decode = partial(self._item, item, data, chosen, is_cached, salt, budget, deadline)
                futures.append(self._decoding.submit(decode))
            for item, future in zip(given, futures[len(given) :], strict=True):
                yield future, max(deadline - time.monotonic(), 0) + GRACE_SECONDS
                if future.cancel():
                    raise QueueFullError("media waits too long to be decoded; try again later")
                if not future.done():  # a decoder that does not look at the clock
                    raise MediaTooLargeError(
                        f"{item.place}: decoding takes too long; send a smaller file"
                    )
                items.append(future.result())
        finally:
            for future in futures:
                future.cancel()

    def _decoder(self, modality: str) -> ModalityDecoder:
        if modality not in self._host.modalities:
            known = ", ".join(self._host.modalities.names())
            raise BadMediaError(f"no plugin decodes {modality!r}; known: {known}")
        with self._lock:
            if modality not in self._decoders:
                self._decoders[modality] = self._host.modalities.make(modality)
            return self._decoders[modality]

    def _bytes(self, given: GivenMedia, budget: MediaBudget) -> bytes | None:
        """The encoded bytes of an item; None for a value that is decoded already."""
        with about(given.place):
            match given.data:
                case str() if given.is_value:
                    return None
                case str():
                    data = self._fetcher.fetch(given.data, budget)
                case os.PathLike():
                    data = read_file(given.data, budget)
                case bytes() | bytearray() | memoryview():
                    budget.add_encoded(memoryview(given.data).nbytes)
                    data = bytes(given.data)
                case _:
                    return None
            if not data:
                raise MediaError("it has 0 bytes")
            return data

    def _item(
        self,
        given: GivenMedia,
        encoded: bytes | None,
        options: Mapping[str, Any],
        is_cached: IsCached,
        salt: str,
        budget: MediaBudget,
        deadline: float,
    ) -> MediaItem:
        modality, kind = given.modality, given.content_kind
        decoder: ModalityDecoder = (
            EncodedDecoder(modality) if given.is_encoded else self._decoder(modality)
        )
        limits = self._config.limits(modality, deadline=deadline, reserve=budget.add_decoded)
        plugin = FRAMEWORK if given.is_encoded else self._host.modalities.info(modality).plugin
        call = f"decoder of {kind}"
        with about(given.place), self._host.faults.guard(plugin, call, request=True):
            name = (salt, kind, json.dumps(options, sort_keys=True), given.uuid)
            value = key = None
            if given.data is None:
                key = self._named.get(name)
                if key is None or not is_cached(key):
                    raise MediaError("no item of this uuid is kept; send it again")
            elif encoded is not None:
                key = content_hash("encoded", kind, options, [encoded])
                if not is_cached(key):
                    value = decoder.decode(encoded, limits, options)
                    if value is None:
                        raise TypeError("decode returned None")
            else:
                value = decoder.convert(given.data, limits, options)
                if value is None:
                    raise TypeError("convert returned None")
                key = content_hash("value", kind, options, decoder.content(value))
            if given.uuid is not None:
                self._named.put(name, key)
            return MediaItem(modality=modality, value=value, content_hash=key)
