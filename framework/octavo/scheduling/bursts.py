"""The tokens that rows yield, read as far as they count: nothing counts behind what ends a row."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from octavo.guided.sequence import guide_end
from octavo.messages import SequenceEnd, error_end
from octavo.scheduling.slots import SlotTable
from octavo.steps.slot_fields import Ints, SlotIds


class Blames(Protocol):
    """Who is to blame for what went wrong in a step."""

    def blame(self, number: int) -> Exception:
        """The error for what is not 0 in ``StepResult.unusable_RK``."""
        ...

    def name(self, error: BaseException) -> BaseException:
        """What a step has raised, with the name of who made it."""
        ...


class Bursts:
    """Appends tokens to their rows and finds those that end."""

    def __init__(self, slot_table: SlotTable, faults: Blames) -> None:
        self._slot_table = slot_table
        self._faults = faults

    def read(
        self, slots: SlotIds, tokens_RK: Ints, counts_R: Ints | None, unusable_RK: Ints | None
    ) -> tuple[Ints | None, dict[int, SequenceEnd]]:
        """Append what counts of each row's tokens.

        Returns how many these are, None for one each, and the ends of rows by their place.
        """
        if counts_R is None:
            unusable_R = None if unusable_RK is None else unusable_RK[:, 0]
            ends, failed = self._append(slots, tokens_RK[:, 0], unusable_R)
            if not failed:
                return None, ends
            told_R = np.ones(len(slots), np.int32)
            told_R[failed] = 0
            return told_R, ends
        told_R, ends = np.zeros(len(slots), np.int32), {}
        rows = np.arange(len(slots))
        for place in range(tokens_RK.shape[1]):
            rows = rows[counts_R[rows] > place]
            if not len(rows):
                break
            unusable_R = None if unusable_RK is None else unusable_RK[rows, place]
            ended, failed = self._append(slots[rows], tokens_RK[rows, place], unusable_R)
            told_R[rows] += 1
            told_R[rows[failed]] -= 1
            ends |= {int(rows[index]): end for index, end in ended.items()}
            rows = np.delete(rows, [*ended])
        return told_R, ends

    def _append(
        self, slots: SlotIds, tokens: Ints, unusable: Ints | None
    ) -> tuple[dict[int, SequenceEnd], list[int]]:
        """One token more for each of these; returns ends, and whose token is not to be told."""
        slot_table = self._slot_table
        lengths = slot_table.known_S[slots]
        slot_table.tokens_SL[slots, lengths] = tokens
        lengths += 1
        slot_table.known_S[slots] = lengths
        finished, ends = self._advance_guides(slots, tokens)
        if unusable is not None:
            for index in np.flatnonzero(unusable).tolist():
                error = self._faults.blame(int(unusable[index]))
                ends[index] = error_end(slot_table.at(int(slots[index])).id, error)
        failed = [*ends]
        stopped = (slot_table.stop_ids_KS[: slot_table.most_stop_ids, slots] == tokens).any(axis=0)
        ended = stopped | finished | (lengths >= slot_table.max_len_S[slots])
        for index in np.flatnonzero(ended).tolist():
            if index not in failed:
                sequence, token = slot_table.at(int(slots[index])), int(tokens[index])
                if stopped[index]:
                    named = token in sequence.request.sampling.stop_token_ids
                    ends[index] = SequenceEnd(sequence.id, "stop", token if named else None)
                elif finished[index]:
                    ends[index] = SequenceEnd(sequence.id, "stop", is_text=True)
                else:
                    ends[index] = SequenceEnd(sequence.id, "length")
        return ends, failed

    def _advance_guides(
        self, slots: SlotIds, tokens: Ints
    ) -> tuple[NDArray[np.bool_], dict[int, SequenceEnd]]:
        """Bring guides up to the tokens; returns which rows end, and how those that fail."""
        slot_table = self._slot_table
        finished = np.zeros(len(slots), np.bool_)
        failed = {}
        for index in np.flatnonzero(
            slot_table.guided_S[slots] | slot_table.masked_S[slots]
        ).tolist():
            sequence = slot_table.at(int(slots[index]))
            guide = sequence.guide
            if guide is not None:
                guide.accept(int(tokens[index]))
                finished[index] = guide.is_finished
                if guide.error is not None:
                    failed[index] = guide_end(sequence.id, guide.error)
        return finished, failed
