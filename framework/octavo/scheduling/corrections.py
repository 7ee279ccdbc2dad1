"""Samples that do not count: a guided row's is put off, or tokens stand in its place."""

from __future__ import annotations

import numpy as np

from octavo.scheduling.record import StepRecord
from octavo.scheduling.slots import SlotTable
from octavo.steps.layout import StateDiff


class Corrections:
    """What the host has changed in rows of the newest step.

    The device is told by the first step that may run the row again: what it sampled has come then.
    """

    def __init__(self, slot_table: SlotTable) -> None:
        self._slot_table = slot_table
        self._corrected: list[tuple[int, int, int]] = []
        """Slots, their epochs, and what was known before the sample."""

    def put_off(self, record: StepRecord, place: int) -> None:
        """Undo what a row of the newest step samples; it samples later from its hidden row."""
        slot = int(record.sample_slots[place])
        self._slot_table.held_S[slot] = slot
        self._correct(record, place, [])

    def give(self, record: StepRecord, place: int, tokens: list[int]) -> None:
        """Give a row of the newest step these tokens in the place of what it samples."""
        self._correct(record, place, tokens)

    def _correct(self, record: StepRecord, place: int, tokens: list[int]) -> None:
        """All that the row had before the step is known, and computed now; no draft counts."""
        slot_table, slot = self._slot_table, int(record.sample_slots[place])
        known = int(slot_table.known_S[slot])
        length = known + len(tokens)
        slot_table.tokens_SL[slot, known:length] = tokens
        slot_table.known_S[slot] = slot_table.planned_S[slot] = length
        slot_table.computed_S[slot] = known
        slot_table.num_due_S[slot] = 0
        # Other records may share the array.
        record.ends = np.where(record.slots == slot, np.int32(known), record.ends)
        self._corrected.append((slot, int(slot_table.epoch_S[slot]), known))
        record.sample_epochs = record.sample_epochs.copy()
        record.sample_epochs[place] = -1
        record.membership = -1  # it is no step to repeat either

    def put(self, diff: StateDiff) -> None:
        """Tell the device where these rows stand, those that are still there."""
        slot_table, later = self._slot_table, []
        for slot, epoch, known in self._corrected:
            if slot_table.ready_step_S[slot] > slot_table.reached_step:
                later.append((slot, epoch, known))
            elif slot_table.epoch_S[slot] == epoch:
                at = np.array([slot], np.intp), np.zeros(1, np.int32)
                diff.put_cells("num_tokens", *at, slot_table.planned_S[[slot]])
                diff.put_cells("computed", *at, slot_table.computed_S[[slot]])
                appended = slot_table.tokens_SL[slot, known : slot_table.planned_S[slot]]
                diff.put_span("tokens", slot, known, appended)
        self._corrected = later
