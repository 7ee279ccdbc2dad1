"""A store of a shadow device's blocks that is slow, fails, forgets and reads at the last moment."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from octavo.cache.groups import CacheLayout
from octavo.cache.prefix import first_visible

COMING, FAILED = -7, -8
"""What stands in blocks that are being brought, and where that has failed."""
MOST_BLOCKS = 60


class Misused(BaseException):
    """What the store's caller must not take for a failure of the store."""


def check(is_right: bool, what: str = "") -> None:
    if not is_right:
        raise Misused(what)


class ShadowStore:
    def __init__(self, world: Any, layout: CacheLayout, rng: random.Random) -> None:
        self.world, self.layout, self.rng = world, layout, rng
        self.pages: dict[tuple[int, bytes], np.ndarray] = {}
        self.growing = [i for i in range(len(layout.groups)) if i not in layout.cross_groups]

    def lookup(self, digests: Sequence[bytes]) -> int:
        self.fail_sometimes()
        for length in range(len(digests), 0, -1):
            if all(key in self.pages for key in self.keys(digests[:length])):
                return length
        return 0

    def keys(self, digests: Sequence[bytes]) -> list[tuple[int, bytes]]:
        block_tokens, found = self.layout.block_tokens, []
        for group in self.growing:
            window = self.layout.groups[group].spec.window
            first = first_visible(window, len(digests) * block_tokens) // block_tokens
            found += [(group, digest) for digest in digests[first:]]
        return found

    def load(self, digests: Sequence[bytes], blocks: Sequence[Sequence[int]]) -> LoadingTicket:
        self.fail_sometimes()
        check(all(len(blocks[group]) == len(digests) for group in self.growing))
        wanted = {
            block: self.pages[group, digest]
            for group in self.growing
            for digest, block in zip(digests, blocks[group], strict=True)
            if block
        }
        for _, _, step in self.world.under_way:
            check(not step.blocks & wanted.keys(), "a step under way uses these blocks")
        return LoadingTicket(self, wanted)

    def store(self, group: int, digests: Sequence[bytes], blocks: Sequence[int]) -> StoringTicket:
        self.fail_sometimes()
        check(len(digests) == len(blocks) == len(set(blocks)) > 0)
        check(0 not in blocks)
        return StoringTicket(self, {(group, d): b for d, b in zip(digests, blocks, strict=True)})

    def keep(self, pages: dict[tuple[int, bytes], np.ndarray]) -> None:
        self.pages.update(pages)
        while len(self.pages) > MOST_BLOCKS:
            del self.pages[self.rng.choice([*self.pages])]

    def fail_sometimes(self) -> None:
        if self.rng.random() < 0.05:
            raise RuntimeError("the store has failed")


class LoadingTicket:
    def __init__(self, store: ShadowStore, wanted: dict[int, np.ndarray]) -> None:
        self._store, self._wanted = store, wanted
        self._left = store.rng.randint(0, 8)
        self._fails = store.rng.random() < 0.2
        for block in wanted:
            store.world.device.pages[block] = COMING

    def ends_within(self, seconds: float) -> bool:
        self._left -= 1
        if self._left == -1:
            for block, content in self._wanted.items():
                page = self._store.world.device.pages[block]
                arrived = FAILED if self._fails else content
                page[:] = np.where(page == COMING, arrived, page)  # others may have written last
        return self._left < 0

    def result(self) -> None:
        check(self._left < 0)
        self._store.world.seen["not brought" if self._fails else "brought"] += 1
        if self._fails:
            raise RuntimeError("the blocks did not come")


class StoringTicket:
    def __init__(self, store: ShadowStore, blocks: dict[tuple[int, bytes], int]) -> None:
        self._store, self._blocks = store, blocks
        self._left = store.rng.randint(0, 8)
        self._pages: dict[tuple[int, bytes], np.ndarray] = {}
        self._behind = 0

    def ends_within(self, seconds: float) -> bool:
        self._left -= 1
        if self._left == -1:
            pages = self._store.world.device.pages
            self._pages = {key: pages[block].copy() for key, block in self._blocks.items()}
            under_way = self._store.world.under_way
            self._behind = max((step.step_id for _, _, step in under_way), default=0)
        return self._left < 0

    def settle(self, is_right: bool) -> None:
        check(self._left < 0)
        self._store.world.seen["kept" if is_right else "not kept"] += 1
        if is_right:
            for _, _, step in self._store.world.under_way:
                check(step.step_id > self._behind, "a step that may yet raise wrote beside it")
            self._store.keep(self._pages)
