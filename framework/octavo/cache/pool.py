"""The block pool on the host: reference counts, free blocks, and the prefix index with its LRU."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

Blocks = NDArray[np.int32]


class BlockPool:
    """Hands out block ids. Block 0 is never handed out: table entries without a block name it.

    A block is live (referenced), cached (unreferenced, but its content can be found by key until
    it is handed out again, least recently used first) or free.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.refs = np.zeros(num_blocks, np.int32)
        # Lowest ids on top of the stack: a fresh pool gives consecutive blocks, which a backend
        # can view without a gather.
        self._free = np.arange(num_blocks - 1, 0, -1, dtype=np.int32)
        self._num_free = num_blocks - 1
        self._has_key = np.zeros(num_blocks, np.bool_)
        self._key_of: dict[int, tuple[int, bytes]] = {}
        self._block_of: dict[tuple[int, bytes], int] = {}
        self._unreferenced: OrderedDict[int, None] = OrderedDict()

    @property
    def num_available(self) -> int:
        """Blocks that can be allocated now: free and cached ones."""
        return self._num_free + len(self._unreferenced)

    @property
    def num_cached(self) -> int:
        """Unreferenced blocks whose content can still be found."""
        return len(self._unreferenced)

    @property
    def num_live(self) -> int:
        """Referenced blocks."""
        return self.num_blocks - 1 - self.num_available

    def allocate(self, count: int) -> Blocks:
        """Take ``count`` blocks with one reference each; the caller has checked availability."""
        shortage = count - self._num_free
        for _ in range(shortage):
            block, _ = self._unreferenced.popitem(last=False)
            self._forget(block)
            self._push_free(np.array([block], np.int32))
        start = self._num_free - count
        blocks = self._free[start : self._num_free][::-1].copy()
        self._num_free = start
        self.refs[blocks] = 1
        return blocks

    def share(self, blocks: Blocks) -> None:
        """Add a reference to each; cached blocks come back to life."""
        for block in blocks[self.refs[blocks] == 0].tolist():
            del self._unreferenced[block]
        self.refs[blocks] += 1

    def release(self, blocks: Blocks) -> None:
        """Drop a reference of each; of a sequence's blocks the last ones are evicted first."""
        self.refs[blocks] -= 1
        unused = blocks[self.refs[blocks] == 0]
        keyed = self._has_key[unused]
        self._push_free(unused[~keyed][::-1])
        for block in unused[keyed][::-1].tolist():
            self._unreferenced[block] = None

    def register(self, block: int, group: int, digest: bytes) -> None:
        """Make a live block's content findable; a second block of equal content stays private."""
        key = (group, digest)
        if block not in self._key_of and key not in self._block_of:
            self._block_of[key] = block
            self._key_of[block] = key
            self._has_key[block] = True

    def find(self, group: int, digest: bytes) -> int | None:
        """Return the block that holds this content, live or cached."""
        return self._block_of.get((group, digest))

    def num_unreferenced(self, blocks: Blocks) -> int:
        """How many of these are cached only: sharing them lowers ``num_available``."""
        return int((self.refs[blocks] == 0).sum())

    def forget_all(self) -> None:
        """Empty the prefix index; live blocks stay with their sequences."""
        cached = np.fromiter(self._unreferenced, np.int32, len(self._unreferenced))
        self._unreferenced.clear()
        self._key_of.clear()
        self._block_of.clear()
        self._has_key[:] = False
        self._push_free(cached)

    def _forget(self, block: int) -> None:
        del self._block_of[self._key_of.pop(block)]
        self._has_key[block] = False

    def _push_free(self, blocks: Blocks) -> None:
        end = self._num_free + len(blocks)
        self._free[self._num_free : end] = blocks
        self._num_free = end
