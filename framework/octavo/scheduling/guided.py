"""Rows that the host masks: which tokens they may have, and what becomes of a sample put off.

A step's tokens are sampled behind its forward pass, when the host has read the tokens of the step
before and knows the masks. Until then a row's sample can be put off: its mask is late, or what
comes next is known already.
"""

from __future__ import annotations

import numpy as np

from octavo.guided.sequence import GuidedSequence, MaskFiller, guide_end
from octavo.messages import SequenceEnd, StepOutputs
from octavo.scheduling.record import StepRecord
from octavo.scheduling.results import StepResults
from octavo.scheduling.scheduler import Scheduler
from octavo.scheduling.sequence import Sequence
from octavo.steps.plan import TokenMasks

UNRECORDED_STEPS = 2
"""What a step with several tokens of a row takes longer than one of single tokens, which is
recorded, in such steps (an 8B model, 64 rows: 16 ms and 6)."""
MOST_SAVED = 16
"""Samples that a row's tokens without a choice are taken to save at most."""


class GuidedRows:
    """Gives the masks of the newest step, whose tokens are not sampled yet."""

    def __init__(self, scheduler: Scheduler, results: StepResults) -> None:
        self._scheduler = scheduler
        self._results = results
        self._slot_table = scheduler.slot_table
        self._filler = MaskFiller()

    def close(self) -> None:
        """End the threads."""
        self._filler.close()

    def masks(self, record: StepRecord, outputs: StepOutputs) -> TokenMasks:
        """The masks of the step's guided rows, save for those whose sample does not count.

        These are late, have failed, turn out to be finished, or have so many tokens to come without
        a choice that sampling them one by one takes longer; these go to ``outputs``.
        """
        slot_table = self._slot_table
        slots = record.sample_slots
        here = slot_table.guided_S[slots] & (slot_table.epoch_S[slots] == record.sample_epochs)
        guided = [
            (place, slot_table.at(int(slots[place]))) for place in np.flatnonzero(here).tolist()
        ]
        guides = [_guide_of(sequence) for _, sequence in guided]
        self._filler.fill(guides, num_rows=len(slots))
        forced = self._forced([s for _, s in guided], guides, UNRECORDED_STEPS * len(slots))
        places, masks, put_off = [], [], []
        for (place, sequence), guide in zip(guided, guides, strict=True):
            if guide.error is not None or (guide.is_current and guide.is_finished):
                outputs.ends.append(self._end(sequence, guide.error))
            elif not guide.is_current:
                self._scheduler.corrections.put_off(record, place)
                put_off.append(place)
            elif tokens := forced.get(sequence.id):
                self._append(record, place, sequence, tokens, outputs)
            else:
                places.append(place)
                masks.append(guide.mask_W)
        return TokenMasks(
            rows_M=np.array(places, np.int32),
            bits_MW=np.stack(masks) if masks else np.zeros((0, 1), np.int32),
            put_off_P=np.array(put_off, np.int32),
        )

    def _forced(
        self, sequences: list[Sequence], guides: list[GuidedSequence], cost: int
    ) -> dict[int, list[int]]:
        """Tokens without a choice by sequence, where these save more than ``cost`` samples.

        A row's save all but that of the step before them. Few backends tell them in no time, so
        they are asked only where there may be enough.
        """
        rows = [
            (sequence, guide)
            for sequence, guide in zip(sequences, guides, strict=True)
            if guide.is_current and not guide.has_choice and not guide.is_finished
        ]
        if len(rows) * MOST_SAVED <= cost:
            return {}
        found = {sequence.id: self._appendable(sequence, guide) for sequence, guide in rows}
        saved = sum(len(tokens) - 1 for tokens in found.values() if tokens)
        return found if saved > cost else {}

    def _appendable(self, sequence: Sequence, guide: GuidedSequence) -> list[int]:
        """None if they end something, or somebody asks for more than the tokens."""
        sampling, slot = sequence.request.sampling, sequence.slot
        if (
            sampling.logprobs >= 0
            or self._slot_table.prompt_logprobs_S[slot]
            or self._scheduler.placement.attaches(slot)
        ):
            return []
        tokens = guide.forced()
        stops = (*sampling.stop_token_ids, *sampling.eos_token_ids)
        fits = int(self._slot_table.known_S[slot]) + len(tokens) < sequence.max_len
        return tokens if len(tokens) > 1 and fits and not set(tokens).intersection(stops) else []

    def _append(
        self,
        record: StepRecord,
        place: int,
        sequence: Sequence,
        tokens: list[int],
        outputs: StepOutputs,
    ) -> None:
        guide = _guide_of(sequence)
        for token in tokens:
            guide.accept(token)
        outputs.prompts.extend(self._results.prompt_reports(np.array([sequence.slot], np.intp)))
        outputs.add(sequence.id, tokens)
        self._scheduler.corrections.give(record, place, tokens)
        if guide.error is not None or guide.is_finished:
            outputs.ends.append(self._end(sequence, guide.error))

    def _end(self, sequence: Sequence, error: Exception | None) -> SequenceEnd:
        self._scheduler.end(sequence)
        if error is None:
            return SequenceEnd(sequence.id, "stop", is_text=True)
        return guide_end(sequence.id, error)


def _guide_of(sequence: Sequence) -> GuidedSequence:
    if sequence.guide is None:
        raise ValueError(f"sequence {sequence.id} has no guide")
    return sequence.guide
