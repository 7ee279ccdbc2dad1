"""Repeated steps: the next step has the rows of an earlier one, each with one token more.

With one stage that is the last step, with several the one that many steps before: rows fall into as
many groups, of which each has a step under way.

Then nothing is sorted, counted or packed anew. At 256 rows, of which 16 need a block, that takes a
quarter of the scheduler's time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from octavo.scheduling.placement import Placement
from octavo.scheduling.record import StepRecord
from octavo.scheduling.slots import SlotTable
from octavo.steps.layout import StateDiff
from octavo.steps.loads import BlockMoves
from octavo.steps.plan import StepPlan
from octavo_kernels.row_features import RowFeature


@dataclass(slots=True)
class _Repeatable:
    plan: StepPlan
    """Without a diff."""
    record: StepRecord
    num_left: int
    """Steps before a row reaches a length at which it changes."""


class RepeatedSteps:
    """Remembers the last steps planned, a step of each group."""

    def __init__(self, slot_table: SlotTable, placement: Placement) -> None:
        self._slot_table = slot_table
        self._placement = placement
        self._steps: deque[_Repeatable | None] = deque([None], maxlen=slot_table.num_stages)
        """None: one that cannot be repeated."""

    def remember(self, plan: StepPlan, record: StepRecord) -> None:
        """Keep a step just planned."""
        self._steps.append(self._repeatable(plan, record))

    def _repeatable(self, plan: StepPlan, record: StepRecord) -> _Repeatable | None:
        """The step, if its rows decode in it."""
        slot_table, slots = self._slot_table, record.slots
        if not (slot_table.is_exact and plan.is_decode) or plan.num_held:
            return None
        lines = self._placement.lines
        planned = slot_table.planned_S[slots]
        limits = slot_table.max_len_S[slots]
        early = (plan.features & RowFeature.MIN_TOKENS) != 0
        limits = np.where(early, np.minimum(limits, slot_table.min_len_S[slots]), limits)
        num_left = int((limits - planned).min())
        if lines is not None:
            num_left = min(num_left, lines.num_steps_before_checkpoint(record.ends))
        sizes = plan.sizes
        again = replace(
            plan,
            buffer=plan.buffer[sizes.diff_indices + sizes.diff_values :],
            sizes=sizes._replace(diff_indices=0, diff_values=0),
            attach=[],
            detach=[],
            moves=BlockMoves(),
            adapters=[],
            automata=[],
            repeats=plan.step_id,
        )
        return _Repeatable(again, record, num_left)

    def next(self, step_id: int) -> tuple[StepPlan, StepRecord] | None:
        """Plan the same rows again; None where something has changed or the pool lacks blocks."""
        last, slot_table, placement = self._steps[0], self._slot_table, self._placement
        if last is None or last.num_left <= 0 or last.record.membership != slot_table.membership:
            return None
        if placement.next_plan.moves.lines or not self._have_all_rows():
            return None  # copies of lines must be made before their rows run on
        record, tables = last.record, placement.tables
        slots = record.slots
        # A row whose tokens fill its blocks gets one more block; nothing else can have changed.
        grown = slots[record.ends % tables.layout.block_tokens == 0]
        if len(grown):
            if len(grown) * len(tables.windows) > tables.pool.num_available:
                return None
            tables.append(grown, placement.next_plan.diff)
        ends = record.ends + np.int32(1)
        plan = last.plan = replace(last.plan, step_id=step_id, context_lens=ends)
        last.record = replace(record, ends=ends)
        last.num_left -= 1
        slot_table.plan(step_id, slots, ends, slots)
        self._steps.append(last)
        if placement.lines is not None:
            placement.lines.plan(slots, record.ends, ends)
        if len(grown):
            plan = _with_diff(plan, placement.take_next_plan().diff)
        return plan, last.record

    def _have_all_rows(self) -> bool:
        """Whether no row runs that has no step among them: it may be ready now."""
        slot_table, num_rows = self._slot_table, 0
        for step in self._steps:
            if step is None:
                return False
            num_rows += step.plan.num_rows
        return num_rows == len(slot_table.sequences) - slot_table.num_free


def _with_diff(plan: StepPlan, diff: StateDiff) -> StepPlan:
    indices, values = diff.joined()
    return replace(
        plan,
        buffer=np.concatenate([indices, values, plan.buffer]),
        sizes=plan.sizes._replace(diff_indices=len(indices), diff_values=len(values)),
    )
