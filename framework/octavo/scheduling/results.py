"""What a finished step means: new tokens, ended sequences, full blocks; or who made it raise."""

from __future__ import annotations

import logging
import time

import msgspec
import numpy as np
from numpy.typing import NDArray

from octavo.messages import PromptReport, SequenceEnd, SequenceLogprobs, StepOutputs, error_end
from octavo.scheduling.bursts import Blames, Bursts
from octavo.scheduling.record import StepRecord
from octavo.scheduling.scheduler import Scheduler
from octavo.scheduling.sequence import Sequence
from octavo.steps.plan import LogprobArrays, StepResult
from octavo.steps.slot_fields import Ints, SlotIds
from octavo.wording import counted
from octavo_registry.faults import one_line

log = logging.getLogger(__name__)


class StepResults:
    """Brings results into the scheduler's state and turns them into outputs."""

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        enable_prefix_caching: bool,
        faults: Blames,
    ) -> None:
        self._scheduler = scheduler
        self._slot_table = scheduler.slot_table
        self._tables = scheduler.placement.tables
        self._caching = enable_prefix_caching
        self._faults = faults
        self._bursts = Bursts(self._slot_table, faults)

    def take_events(self) -> StepOutputs:
        """What has happened without a step's result: refusals and preemptions, told once."""
        scheduler = self._scheduler
        outputs = StepOutputs(ends=scheduler.refused, preempted=scheduler.preempted)
        scheduler.refused, scheduler.preempted = [], []
        return outputs

    def apply(self, record: StepRecord, result: StepResult) -> StepOutputs:
        """Take one step's result; rows whose sequence has left meanwhile are passed over."""
        slot_table = self._slot_table
        self._scheduler.num_under_way -= 1
        valid: slice | NDArray[np.int64] = slice(None)
        sampled: slice | NDArray[np.int64] = slice(None)
        if record.membership != slot_table.membership:
            valid = np.flatnonzero(slot_table.epoch_S[record.slots] == record.epochs)
            sampled = np.flatnonzero(
                slot_table.epoch_S[record.sample_slots] == record.sample_epochs
            )
        slots, sampled_slots = record.slots[valid], record.sample_slots[sampled]
        confirmed = record.ends[valid]
        slot_table.confirmed_S[slots] = confirmed
        self._take_prompt_logprobs(record, result.prompt_logprobs)

        tokens_RK = result.tokens_RK[sampled]
        counts_R = None if result.counts_R is None else result.counts_R[sampled]
        unusable_RK = None if result.unusable_RK is None else result.unusable_RK[sampled]
        told_R, ends = self._bursts.read(sampled_slots, tokens_RK, counts_R, unusable_RK)
        outputs = msgspec.structs.replace(
            self.take_events(),
            **self._told(sampled_slots, tokens_RK, told_R),
            logprobs=self._logprobs(sampled, sampled_slots, result, told_R),
            prompts=self.prompt_reports(
                sampled_slots if counts_R is None else sampled_slots[counts_R > 0]
            ),
        )
        if not slot_table.is_exact:
            slot_table.settle(sampled_slots)
            confirmed = slot_table.confirmed_S[slots]
        self._complete_blocks(slots, confirmed)
        outputs.ends.extend(ends.values())
        for end in ends.values():
            self._scheduler.end(self._scheduler.sequences[end.sequence])
        self._clear_suspects()
        return outputs

    def fail(
        self, record: StepRecord, later: list[StepRecord], error: BaseException
    ) -> StepOutputs:
        """A step raised: its rows run again alone, and one that raises alone has failed.

        Steps launched after it may have built on what it did not write, and all rows begin anew.
        """
        slot_table, scheduler = self._slot_table, self._scheduler
        scheduler.num_under_way -= 1
        if record.void:
            return self.take_events()
        ends: list[SequenceEnd] = []
        valid = np.flatnonzero(slot_table.epoch_S[record.slots] == record.epochs)
        blamed = [slot_table.at(slot) for slot in record.slots[valid].tolist()]
        log.warning("a step of %s raised: %s", counted(len(record.slots), "row"), one_line(error))
        log.debug("where the step raised:", exc_info=error)
        if len(record.slots) == 1 and blamed:
            (culprit,) = blamed
            ends.append(error_end(culprit.id, self._faults.name(error)))
            scheduler.end(culprit)
        else:
            for sequence, end in zip(blamed, record.ends[valid].tolist(), strict=True):
                sequence.suspect_until = end
                scheduler.suspects[sequence.id] = sequence
        for other in later:
            other.void = True
        scheduler.start_over()
        outputs = self.take_events()
        outputs.ends.extend(ends)
        return outputs

    def _clear_suspects(self) -> None:
        suspects = self._scheduler.suspects
        for sequence in list(suspects.values()):
            slot = sequence.slot
            if slot >= 0 and self._slot_table.confirmed_S[slot] >= sequence.suspect_until:
                sequence.suspect_until = 0
                del suspects[sequence.id]

    def _complete_blocks(self, slots: SlotIds, confirmed: Ints) -> None:
        """Register blocks that are now full, and give back those behind a window."""
        slot_table, tables = self._slot_table, self._tables
        block_tokens = tables.layout.block_tokens
        block_ends = slot_table.block_end_S[slots]
        full = confirmed >= block_ends
        if not full.any():
            return
        slots, confirmed = slots[full], confirmed[full]
        # The block that ends there is the first new one; a row that has just entered says 0.
        firsts = np.maximum(block_ends[full] // block_tokens - 1, 0).tolist()
        num_full = confirmed // block_tokens
        slot_table.block_end_S[slots] = (num_full + 1) * block_tokens
        if self._caching:
            for slot, *span in zip(slots.tolist(), firsts, num_full.tolist(), strict=True):
                self._scheduler.placement.register_blocks(slot_table.at(slot), *span)
        if tables.has_window:
            for slot, position in zip(slots.tolist(), confirmed.tolist(), strict=True):
                tables.drop_unseen(slot, position)

    def prompt_reports(self, slots: SlotIds) -> list[PromptReport]:
        """Reports of rows that have their first token; each is made once."""
        reports = []
        now = time.monotonic()
        for slot in slots[~self._slot_table.reported_S[slots]].tolist():
            sequence = self._slot_table.at(slot)
            placed = sequence.placed_seconds or now
            self._slot_table.reported_S[slot] = sequence.reported = True
            asked = self._slot_table.prompt_logprobs_S[slot]
            self._slot_table.prompt_logprobs_S[slot] = False
            # The list is the report's from here on: a client in this process reads it later.
            logprobs, sequence.prompt_logprobs = sequence.prompt_logprobs, []
            reports.append(
                PromptReport(
                    sequence.id,
                    sequence.num_cached_tokens,
                    logprobs if asked else None,
                    placed - sequence.arrival_seconds,
                    now - placed,
                    None if sequence.guide is None else sequence.guide.seconds,
                    "" if sequence.guide is None else sequence.guide.backend,
                )
            )
        return reports

    def _take_prompt_logprobs(self, record: StepRecord, arrays: LogprobArrays | None) -> None:
        if arrays is None:
            return
        row = 0
        for sequence, count in record.prompt_spans:
            wanted = sequence.request.sampling.prompt_logprobs
            if self._is_current(record, sequence):
                sequence.prompt_logprobs += [
                    _row_logprobs(arrays, row + i, wanted) for i in range(count)
                ]
            row += count

    def _is_current(self, record: StepRecord, sequence: Sequence) -> bool:
        match = record.slots == sequence.slot
        return bool((self._slot_table.epoch_S[record.slots[match]] == record.epochs[match]).any())

    def _told(self, slots: SlotIds, tokens_RK: Ints, told_R: Ints | None) -> dict[str, list[int]]:
        """Sequences and the tokens of each that count, one after the other."""
        ids = self._slot_table.sequence_ids_S[slots]
        if told_R is None:
            return {"sequences": ids.tolist(), "tokens": tokens_RK[:, 0].tolist()}
        some, most = told_R > 0, tokens_RK.shape[1]
        return {
            "sequences": ids[some].tolist(),
            "tokens": tokens_RK[np.arange(most) < told_R[:, None]].tolist(),
            "counts": told_R[some].tolist() if most > 1 else [],
        }

    def _logprobs(
        self,
        sampled: slice | NDArray[np.int64],
        slots: SlotIds,
        result: StepResult,
        told_R: Ints | None,
    ) -> dict[int, list[SequenceLogprobs]]:
        arrays = result.logprobs
        if arrays is None:
            return {}
        slot_table = self._slot_table
        most = result.tokens_RK.shape[1]
        firsts = most * np.arange(len(result.tokens_RK))[sampled]
        wanted = slot_table.num_logprobs_S[slots]
        told_R = np.ones(len(slots), np.int32) if told_R is None else told_R
        return {
            int(slot_table.sequence_ids_S[slots[i]]): [
                _row_logprobs(arrays, line, int(wanted[i]))
                for line in range(int(firsts[i]), int(firsts[i] + told_R[i]))
            ]
            for i in np.flatnonzero((wanted >= 0) & (told_R > 0)).tolist()
        }


def _row_logprobs(arrays: LogprobArrays, row: int, wanted: int) -> SequenceLogprobs:
    return SequenceLogprobs(
        arrays.token_ids[row, : wanted + 1].tolist(),
        arrays.logprobs[row, : wanted + 1].tolist(),
        int(arrays.ranks[row]),
    )
