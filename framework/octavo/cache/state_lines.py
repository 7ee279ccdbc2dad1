"""Lines of recurrent state on the host: who has which, and copies that are kept under prefixes.

A line holds the state of all layers behind so many tokens of one sequence, and a log of what the
last tokens of its last step add, which the next step applies as far as they count. So nothing is
ever rolled back, and a line can be taken up at any token between these two.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Several
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from octavo.cache.pool import BlockPool
from octavo.steps.loads import LineMove
from octavo.steps.slot_fields import Ints, SlotIds

PADDING: Final = 0
"""The line of rows that only fill up a step."""
ZEROS: Final = 1
"""The line as which each sequence begins; nobody writes there."""
NUM_RESERVED: Final = 2
_ALONE: Final = 0
"""Lines are found as blocks are, in a pool of one group."""


@dataclass(slots=True)
class _Kept:
    """Copies of a slot's line that the slot holds."""

    checkpoints: list[tuple[int, int]] = field(default_factory=list)
    """(tokens, line) until these tokens are confirmed."""
    family: int | None = None
    """As the prompt has left it."""
    num_forks: int = 0
    """Forks that are still to come."""


class StateLines:
    """A pool of equal lines. A step's lines are copied by the plan behind it.

    ``position_S`` counts the tokens whose effect a slot's state has at most, once all planned
    steps have run; those behind them are in its log.
    """

    def __init__(
        self,
        num_lines: int,
        num_slots: int,
        *,
        num_swap_lines: int = 0,
        num_logged: int = 1,
        checkpoint_tokens: int = 0,
    ) -> None:
        """``num_logged``: tokens that a log holds. Without ``checkpoint_tokens`` none is kept."""
        self.line_S = np.zeros(num_slots, np.int32)
        self.position_S = np.zeros(num_slots, np.int32)
        self.pool = BlockPool(num_lines)
        self.checkpoint_tokens = checkpoint_tokens
        self._num_logged = num_logged
        self._kept: dict[int, _Kept] = {}
        self._free_swap_lines = list(range(num_swap_lines - 1, -1, -1))
        self.pool.allocate(NUM_RESERVED - 1)  # the pool never gives out the first

    @property
    def num_available(self) -> int:
        """Lines that can be had now; the oldest checkpoints go for them."""
        return self.pool.num_available

    def find(self, digest: bytes) -> int | None:
        """The checkpoint behind the prefix that this block ends."""
        return self.pool.find(_ALONE, digest)

    def take(self, source: int, moves: list[LineMove]) -> int:
        """A line that begins as a copy of another; the caller has seen that one can be had."""
        line = int(self.pool.allocate(1)[0])
        if line != source:  # else the oldest checkpoint goes for one who begins there
            moves.append(LineMove("copy", source, line))
            if self.pool.refs[source] == 0:  # a checkpoint: it is the newest used
                self.pool.share(np.array([source], np.int32))
                self._release([source])
        return line

    def hold(self, slot: int, line: int, position: int) -> None:
        """Say whose it is, and where the sequence begins."""
        self.line_S[slot], self.position_S[slot] = line, position

    def plan(self, slots: SlotIds, starts: Ints, ends: Ints) -> None:
        """A step is planned that takes these rows so far."""
        self.position_S[slots] = np.maximum(starts, ends - self._num_logged)

    def follow(
        self,
        slots: SlotIds,
        starts: Ints,
        ends: Ints,
        is_known: NDArray[np.bool_],
        moves: list[LineMove],
    ) -> None:
        """A step is planned; have lines copied behind it that come to a place for a checkpoint.

        ``is_known``: of others' tokens some may not count.
        """
        runs = ends > starts  # others only sample
        self.plan(slots[runs], starts[runs], ends[runs])
        if not self.checkpoint_tokens:
            return
        due = runs & is_known & (ends % self.checkpoint_tokens == 0)
        for slot, end in zip(slots[due].tolist(), ends[due].tolist(), strict=True):
            if self.num_available:
                line = self.take(int(self.line_S[slot]), moves)
                self._kept.setdefault(slot, _Kept()).checkpoints.append((end, line))

    def cut(self, starts: Ints, counts: Ints) -> Ints:
        """As many of the rows' tokens as lead to the last place for a checkpoint, if any does."""
        if not self.checkpoint_tokens:
            return counts
        ends = starts + counts
        last = ends - ends % self.checkpoint_tokens
        cut: Ints = np.where(last > starts, last - starts, counts).astype(np.int32)
        return cut

    def num_steps_before_checkpoint(self, ends: Ints) -> int:
        """Steps of one token a row behind one to these ends, before one that leads to a place."""
        if not self.checkpoint_tokens:
            return 2**31
        return int((self.checkpoint_tokens - 1 - ends % self.checkpoint_tokens).min())

    def keep_for_family(self, slot: int, num_forks: int, moves: list[LineMove]) -> None:
        """Copy the line of a row whose prompt ends with a step just planned."""
        if num_forks and self.num_available:
            kept = self._kept.setdefault(slot, _Kept())
            kept.family, kept.num_forks = self.take(int(self.line_S[slot]), moves), num_forks

    def family_line(self, slot: int) -> int | None:
        """What those who fork from a slot begin with; None: it is not kept."""
        kept = self._kept.get(slot)
        return None if kept is None else kept.family

    def count_fork(self, slot: int) -> None:
        """One of its family needs a copy no more; nothing is kept behind the last."""
        kept = self._kept.get(slot)
        if kept is None or kept.family is None:
            return
        kept.num_forks -= 1
        if kept.num_forks == 0:
            self._release([kept.family])
            kept.family = None

    def register(
        self, slot: int, confirmed: int, digests: Several[bytes], block_tokens: int
    ) -> None:
        """Let checkpoints be found that stand behind confirmed tokens only."""
        kept = self._kept.get(slot)
        if kept is None:
            return
        for end, line in kept.checkpoints:
            if end <= confirmed:
                self.pool.register(line, _ALONE, digests[end // block_tokens - 1])
                self._release([line])
        kept.checkpoints = [each for each in kept.checkpoints if each[0] > confirmed]

    def release(self, slot: int) -> None:
        """Give back a slot's line and the copies that it holds."""
        lines = [int(self.line_S[slot])]
        kept = self._kept.pop(slot, None)
        if kept is not None:
            lines += [line for _, line in kept.checkpoints]
            lines += [] if kept.family is None else [kept.family]
        self._release(lines)
        self.line_S[slot] = PADDING

    def swap_out(self, slot: int, num_tokens: int, moves: list[LineMove]) -> int | None:
        """Copy a slot's line to the host, to be taken up behind so many tokens.

        None: there is no room, or its state is already one behind more of them.
        """
        if not self._free_swap_lines or self.position_S[slot] > num_tokens:
            return None
        swap_line = self._free_swap_lines.pop()
        moves.append(LineMove("swap_out", int(self.line_S[slot]), swap_line))
        return swap_line

    def take_swapped(self, swap_line: int, moves: list[LineMove]) -> int:
        """A line with what was copied to the host."""
        line = int(self.pool.allocate(1)[0])
        moves.append(LineMove("swap_in", swap_line, line))
        self.forget_swapped(swap_line)
        return line

    def forget_swapped(self, swap_line: int) -> None:
        """Nobody takes it up again. Moves come one after the other, so that it is free at once."""
        self._free_swap_lines.append(swap_line)

    def forget_all(self) -> None:
        """Forget what checkpoints hold; no slot has a line."""
        self.pool.forget_all()

    def _release(self, lines: Iterable[int]) -> None:
        self.pool.release(np.array([*lines], np.int32))
