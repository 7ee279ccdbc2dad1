"""Recurrent state on the shadow device: lines that know behind which prefix they stand.

A line has the digest of the tokens whose effect it has, and a log of those behind them. A step must
come to the very digest of its row's prefix, so that a wrong line is seen, and a token that is
counted twice or not at all.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from octavo.cache.state_lines import NUM_RESERVED, ZEROS, StateLines
from octavo.scheduling.scheduler import Scheduler
from octavo.steps.loads import LineMove
from shadow_device import ShadowDevice, extend_digest, first_digest

NUM_LINES = NUM_RESERVED + 6 + 4
"""One for each slot, and a few more."""
NUM_SWAP_LINES = 3
CHECKPOINT_TOKENS = 8


@dataclass
class Line:
    position: int = 0
    digest: int | None = None
    """None: as before any token, whatever the sequence is."""
    log: list[int] = field(default_factory=list)


class LineDevice(ShadowDevice):
    def __init__(self, layout, *args, **options) -> None:
        super().__init__(layout, *args, **options)
        self.lines = [Line() for _ in range(NUM_LINES)]
        self.swap_lines = [Line() for _ in range(NUM_SWAP_LINES)]

    def run(self, plan):
        for move in plan.moves.lines:
            self._move(move)
        return super().run(plan)

    def _move(self, move: LineMove) -> None:
        source = self.swap_lines if move.kind == "swap_in" else self.lines
        target = self.swap_lines if move.kind == "swap_out" else self.lines
        assert move.kind == "swap_out" or move.target >= NUM_RESERVED, "a reserved line is written"
        line = source[move.source]
        target[move.target] = Line(line.position, line.digest, [*line.log])

    def _run_row(self, slot: int, count: int, num_drafts: int) -> list[int]:
        place = int(self.field("state_line")[slot])
        start = int(self.field("computed")[slot])
        tokens = self.field("tokens")[slot, : start + count + num_drafts].tolist()
        behind = super()._run_row(slot, count, num_drafts)
        assert self.broken or place >= NUM_RESERVED, "a row runs without a line"
        if self.broken:
            self.lines[place] = Line(0, -1)
            return behind
        digests = [self._heard(slot, first_digest(self._adapter(slot)))]
        for token in tokens:
            digests.append(extend_digest(digests[-1], token))
        line = self.lines[place]
        counted = start - line.position
        assert 0 <= counted <= len(line.log), "its state is behind more tokens, or too few"
        digest = digests[0] if line.digest is None else line.digest
        for token in line.log[:counted]:
            digest = extend_digest(digest, token)
        assert digest == digests[start], f"slot {slot}: its state is that of other tokens"
        final = max(count + num_drafts - self.layout.lines.num_logged, 0)
        assert num_drafts == 0 or final < count, "a draft is final"
        position = start + final
        self.lines[place] = Line(position, digests[position], tokens[position:])
        return behind


def check_lines(scheduler: Scheduler) -> None:
    """Each line is somebody's, once, or can be had."""
    lines: StateLines = scheduler.placement.lines
    held = Counter({ZEROS: 1})
    for slot, sequence in enumerate(scheduler.slot_table.sequences):
        line = int(lines.line_S[slot])
        assert (sequence is not None) == (line >= NUM_RESERVED)
        if sequence is None:
            assert slot not in lines._kept
            continue
        held[line] += 1
        if kept := lines._kept.get(slot):
            held.update(line for _, line in kept.checkpoints)
            if kept.family is not None:
                held[kept.family] += 1
                waits = [s for s in scheduler.sequences.values() if s.leader is sequence]
                assert len(waits) == kept.num_forks > 0, "a line is kept for nobody"
    assert all(count == 1 for count in held.values()), "a line is two slots'"
    assert dict.fromkeys(np.flatnonzero(lines.pool.refs).tolist(), 1) == dict(held)
    swapped = [s.swapped.line for s in scheduler.sequences.values() if s.swapped is not None]
    taken = set(range(NUM_SWAP_LINES)).difference(lines._free_swap_lines)
    assert sorted(swapped) == sorted(taken)
