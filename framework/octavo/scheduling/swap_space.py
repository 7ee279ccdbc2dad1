"""Host memory for what preempted sequences leave: their blocks, and lines of recurrent state."""

from __future__ import annotations

import numpy as np

from octavo.cache.pool import Blocks
from octavo.cache.state_lines import StateLines
from octavo.cache.tables import BlockTables
from octavo.scheduling.sequence import SwappedBlocks
from octavo.steps.loads import BlockMoves


class SwapSpace:
    """Who has which block of the host."""

    def __init__(self, tables: BlockTables, lines: StateLines | None, num_blocks: int) -> None:
        self.free_blocks = list(range(num_blocks - 1, -1, -1))
        self._emptied: list[int] = []
        """Read, or written in vain, by the next plan; they may be written by the one behind it."""
        self._tables = tables
        self._lines = lines

    def plan_is_taken(self) -> None:
        """What the plan empties is free for the next."""
        self.free_blocks += self._emptied
        self._emptied = []

    def copy_out(self, slot: int, num_tokens: int, moves: BlockMoves) -> SwappedBlocks | None:
        """Have a row's first tokens copied to the host; None: there is no room for them.

        Encoded media are not copied: their blocks are found by content, or filled again.
        """
        tables = self._tables
        count = -(-num_tokens // tables.layout.block_tokens)
        held: list[list[tuple[int, int]]] = []
        for group, blocks in enumerate(tables.held(slot)):
            if group in tables.cross_groups:
                held.append([])
                continue
            first = int(tables.first_GS[group, slot])
            held.append([(first + i, int(b)) for i, b in enumerate(blocks) if first + i < count])
        if num_tokens == 0 or sum(map(len, held)) > len(self.free_blocks):
            return None
        line = None
        if self._lines is not None:
            line = self._lines.swap_out(slot, num_tokens, moves.lines)
            if line is None:
                return None
        blocks_by_group = []
        for entries in held:
            pairs = []
            for index, block in entries:
                swap = self.free_blocks.pop()
                moves.swap_out.append((block, swap))
                pairs.append((index, swap))
            blocks_by_group.append(pairs)
        return SwappedBlocks(num_tokens, blocks_by_group, line)

    def copy_in(self, swapped: SwappedBlocks, moves: BlockMoves) -> list[Blocks]:
        """Have blocks copied back to new ones, for which there is room; these by group.

        Entries behind a window are 0. The line comes back with ``StateLines.take_swapped``.
        """
        entries = -(-swapped.num_tokens // self._tables.layout.block_tokens)
        blocks_by_group = []
        for pairs in swapped.blocks_by_group:
            blocks = self._tables.pool.allocate(len(pairs))
            first = pairs[0][0] if pairs else entries
            blocks_by_group.append(np.concatenate([np.zeros(first, np.int32), blocks]))
            for (_, swap), block in zip(pairs, blocks.tolist(), strict=True):
                moves.swap_in.append((swap, block))
                self._emptied.append(swap)
        return blocks_by_group

    def forget(self, swapped: SwappedBlocks) -> None:
        """Nobody takes it up again."""
        for pairs in swapped.blocks_by_group:
            self._emptied += [swap for _, swap in pairs]
        if self._lines is not None and swapped.line is not None:
            self._lines.forget_swapped(swapped.line)
