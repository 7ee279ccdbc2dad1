"""Block tables of the running sequences: one row a slot, one table a cache group."""

from __future__ import annotations

import numpy as np

from octavo.cache.groups import CacheLayout
from octavo.cache.pool import BlockPool, Blocks
from octavo.cache.prefix import first_visible
from octavo.steps.layout import StateDiff
from octavo.steps.loads import BlockMoves
from octavo.steps.slot_fields import Ints, SlotIds


class BlockTables:
    """Who holds which block. Each change is written to the step's diff for the device's tables.

    ``lengths_GS`` counts a row's entries, ``first_GS`` its first entry still held: a window group
    gives blocks back from the front.
    """

    def __init__(
        self, layout: CacheLayout, pool: BlockPool, num_slots: int, max_blocks: int
    ) -> None:
        self.layout = layout
        self.pool = pool
        num_groups = len(layout.groups)
        self.lengths_GS = np.zeros((num_groups, num_slots), np.int32)
        self.first_GS = np.zeros((num_groups, num_slots), np.int32)
        self.tables_GSB = np.zeros((num_groups, num_slots, max_blocks), np.int32)
        self.windows = [group.spec.window for group in layout.groups]
        self._names = [f"table{group}" for group in range(num_groups)]
        self.cross_groups = layout.cross_groups
        self._growing = [group for group in range(num_groups) if group not in self.cross_groups]
        self._growing_G1 = np.array(self._growing, np.intp)[:, None]
        self.has_window = any(window is not None for window in self.windows)

    def num_new_blocks(self, slots: SlotIds, ends: Ints) -> Ints:
        """Blocks each row lacks, over all groups, to hold positions below ``ends``."""
        wanted = -(-ends // self.layout.block_tokens)
        need_GR = np.maximum(wanted - self.lengths_GS[self._growing_G1, slots], 0)
        total: Ints = need_GR.sum(axis=0, dtype=np.int32)
        return total

    def append(self, slots: SlotIds, diff: StateDiff) -> None:
        """Give each row one more block in every group; the caller has checked the pool."""
        for group in self._growing:
            columns = self.lengths_GS[group][slots]
            blocks = self.pool.allocate(len(slots))
            self.tables_GSB[group][slots, columns] = blocks
            self.lengths_GS[group][slots] = columns + 1
            diff.put_cells(self._names[group], slots, columns, blocks)

    def grow(self, slots: SlotIds, ends: Ints, diff: StateDiff) -> None:
        """Give each row the blocks it lacks; the caller has checked that the pool has them."""
        wanted = -(-ends // self.layout.block_tokens)
        for group in self._growing:
            have = self.lengths_GS[group, slots]
            need = np.maximum(wanted - have, 0)
            total = int(need.sum())
            if total == 0:
                continue
            blocks = self.pool.allocate(total)
            rows = np.repeat(slots, need)
            starts = np.cumsum(need) - need
            columns = (np.arange(total) + np.repeat(have - starts, need)).astype(np.int32)
            self.tables_GSB[group, rows, columns] = blocks
            self.lengths_GS[group, slots] = have + need
            diff.put_cells(self._names[group], rows, columns, blocks)

    def adopt(self, slot: int, blocks_by_group: list[Blocks], diff: StateDiff) -> None:
        """Start an empty row with blocks that others hold too, or that are cached."""
        for blocks in blocks_by_group:
            self.pool.share(blocks[blocks != 0])
        self.start(slot, blocks_by_group, diff)

    def start(self, slot: int, blocks_by_group: list[Blocks], diff: StateDiff) -> None:
        """Start an empty row with references that the caller took for it.

        Leading zeros are entries behind a window; a window of one token may leave nothing else.
        """
        for group in self._growing:
            blocks = blocks_by_group[group]
            first = int((blocks == 0).sum())
            self._start_row(group, slot, first, blocks, diff)

    def start_cross(self, slot: int, blocks_by_group: list[Blocks], diff: StateDiff) -> None:
        """Give a row references to the blocks of its encoded media."""
        for group, blocks in zip(self.cross_groups, blocks_by_group, strict=True):
            self._start_row(group, slot, 0, blocks, diff)

    def cross_slots(self, slot: int, num_rows: int) -> list[Ints]:
        """Where the keys and values of a row's encoded media go, by cross group."""
        rows = np.arange(num_rows, dtype=np.int32)
        slots = []
        for group in self.cross_groups:
            block_tokens = np.int32(self.layout.groups[group].block_tokens)
            columns, offsets = np.divmod(rows, block_tokens)
            slots.append(self.tables_GSB[group, slot, columns] * block_tokens + offsets)
        return slots

    def can_fork(self, parent: int, num_tokens: int) -> bool:
        """Whether a row still holds all that the token after its first ``num_tokens`` sees."""
        return all(
            first_visible(window, num_tokens) // self.layout.block_tokens
            >= self.first_GS[group, parent]
            for group, window in enumerate(self.windows)
        )

    def fork(
        self, parent: int, child: int, num_tokens: int, diff: StateDiff, moves: BlockMoves
    ) -> None:
        """Start an empty row with a parent's first ``num_tokens``: full blocks are shared.

        The block that the child writes next is its own copy. So a shared block is never written,
        and the parent never notices. Both see the same encoded media.
        """
        block_tokens = self.layout.block_tokens
        num_full, partial = divmod(num_tokens, block_tokens)
        for group in self.cross_groups:
            blocks = self.tables_GSB[group, parent, : self.lengths_GS[group, parent]].copy()
            self.pool.share(blocks)
            self._start_row(group, child, 0, blocks, diff)
        for group in self._growing:
            window = self.windows[group]
            first = min(first_visible(window, num_tokens) // block_tokens, num_full)
            blocks = self.tables_GSB[group, parent, : num_full + (partial > 0)].copy()
            blocks[:first] = 0
            self.pool.share(blocks[first:num_full])
            if partial:
                moves.copy.append((int(blocks[num_full]), own := int(self.pool.allocate(1)[0])))
                blocks[num_full] = own
            self._start_row(group, child, first, blocks, diff)

    def drop_unseen(self, slot: int, position: int) -> None:
        """Give back blocks that no query at or after ``position`` can see."""
        for group, window in enumerate(self.windows):
            if window is None:
                continue
            keep = first_visible(window, position) // self.layout.block_tokens
            keep = min(keep, int(self.lengths_GS[group, slot]))
            first = int(self.first_GS[group, slot])
            if keep > first:
                self.pool.release(self.tables_GSB[group, slot, first:keep])
                self.first_GS[group, slot] = keep

    def held(self, slot: int) -> list[Blocks]:
        """Blocks that a row holds, by group."""
        return [
            self.tables_GSB[
                group, slot, self.first_GS[group, slot] : self.lengths_GS[group, slot]
            ].copy()
            for group in range(len(self.windows))
        ]

    def release(self, slot: int) -> None:
        """Give all of a row's blocks back; blocks shared with others survive."""
        for group, blocks in enumerate(self.held(slot)):
            self.pool.release(blocks)
            self.lengths_GS[group, slot] = 0
            self.first_GS[group, slot] = 0

    def _start_row(
        self, group: int, slot: int, first: int, blocks: Blocks, diff: StateDiff
    ) -> None:
        self.tables_GSB[group, slot, : len(blocks)] = blocks
        self.lengths_GS[group, slot] = len(blocks)
        self.first_GS[group, slot] = first
        diff.put_span(self._names[group], slot, 0, blocks)
