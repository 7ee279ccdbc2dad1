"""Draws that do not count: a guided row's is withdrawn, or tokens stand in its place."""

from __future__ import annotations

import numpy as np

from octavo.scheduling.record import StepRecord
from octavo.scheduling.slots import Rows
from octavo.steps.layout import StateDiff


class Corrections:
    """What the host has changed in rows of the newest step; the next step tells the device."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._corrected: list[tuple[int, int, int]] = []
        """Slots, their epochs, and what was known before the draw."""

    def withdraw(self, record: StepRecord, place: int) -> None:
        """Undo the draw of a row of the newest step; it runs again for the same token."""
        slot = int(record.sample_slots[place])
        self._rows.computed_S[slot] -= 1
        # Other records may share the array.
        record.ends = np.where(record.slots == slot, record.ends - np.int32(1), record.ends)
        self.append(record, place, [])

    def append(self, record: StepRecord, place: int, tokens: list[int]) -> None:
        """Give a row of the newest step these tokens in the place of the one that it draws."""
        rows, slot = self._rows, int(record.sample_slots[place])
        known = int(rows.known_S[slot])
        length = known + len(tokens)
        rows.tokens_SL[slot, known:length] = tokens
        rows.known_S[slot] = rows.planned_S[slot] = length
        self._corrected.append((slot, int(rows.epoch_S[slot]), known))
        record.sample_epochs = record.sample_epochs.copy()
        record.sample_epochs[place] = -1
        record.membership = -1  # it is no step to repeat either

    def put(self, diff: StateDiff) -> None:
        """Tell the device where these rows stand, those that are still there."""
        rows = self._rows
        for slot, epoch, known in self._corrected:
            if rows.epoch_S[slot] == epoch:
                at = np.array([slot], np.intp), np.zeros(1, np.int32)
                diff.put_cells("num_tokens", *at, rows.planned_S[[slot]])
                diff.put_cells("computed", *at, rows.computed_S[[slot]])
                appended = rows.tokens_SL[slot, known : rows.planned_S[slot]]
                diff.put_span("tokens", slot, known, appended)
        self._corrected.clear()
