"""Guided rows: which tokens they may draw, and what becomes of a draw that cannot be.

A step's tokens are drawn behind its forward pass, when the host has read the tokens of the step
before and knows the masks. Until then a row's draw can be withdrawn: its mask is late, or what
comes next is known already.
"""

from __future__ import annotations

import numpy as np

from octavo.engine.messages import SequenceEnd, StepOutputs
from octavo.guided.sequence import GuidedSequence, MaskFiller, guide_end
from octavo.scheduling.plan import StepRecord, TokenMasks
from octavo.scheduling.results import StepResults
from octavo.scheduling.scheduler import Scheduler
from octavo.scheduling.sequence import Sequence

UNRECORDED_STEPS = 2
"""What a step with several tokens of a row takes longer than one of single tokens, which is
recorded, in such steps (an 8B model, 64 rows: 16 ms and 6)."""


class GuidedRows:
    """Gives the masks of the newest step, whose tokens are not drawn yet."""

    def __init__(self, scheduler: Scheduler, results: StepResults) -> None:
        self._scheduler = scheduler
        self._results = results
        self._rows = scheduler.rows
        self._filler = MaskFiller()

    def close(self) -> None:
        """End the threads."""
        self._filler.close()

    def masks(self, record: StepRecord, outputs: StepOutputs) -> TokenMasks:
        """The masks of the step's guided rows, save for those whose draw does not count.

        These are late, have failed, turn out to be finished, or have so many tokens to come without
        a choice that drawing them one by one takes longer; these go to ``outputs``.
        """
        rows = self._rows
        slots = record.sample_slots
        here = rows.guided_S[slots] & (rows.epoch_S[slots] == record.sample_epochs)
        guided = [(place, rows.at(int(slots[place]))) for place in np.flatnonzero(here).tolist()]
        guides = [_guide_of(sequence) for _, sequence in guided]
        self._filler.fill(guides, among_others=len(guides) < len(slots))
        saved = [self._num_saved(s, g) for (_, s), g in zip(guided, guides, strict=True)]
        pays = sum(saved) > UNRECORDED_STEPS * len(slots)
        places, masks, in_logprobs = [], [], []
        for (place, sequence), guide, num_saved in zip(guided, guides, saved, strict=True):
            if guide.error is not None or (guide.is_current and guide.is_finished):
                outputs.ends.append(self._end(sequence, guide.error))
            elif not guide.is_current:
                self._scheduler.withdraw(record, place)
            elif pays and num_saved:
                self._append(record, place, sequence, guide, outputs)
            else:
                places.append(place)
                masks.append(guide.mask_W)
                in_logprobs.append(sequence.request.sampling.logprobs_of_allowed)
        return TokenMasks(
            rows_M=np.array(places, np.int32),
            bits_MW=np.stack(masks) if masks else np.zeros((0, 1), np.int32),
            in_logprobs_M=np.array(in_logprobs, np.bool_),
        )

    def _num_saved(self, sequence: Sequence, guide: GuidedSequence) -> int:
        """Steps of a row that its tokens without a choice can save: all but the one before them.

        None if they end something, or somebody asks for more than the tokens.
        """
        tokens = guide.forced
        if len(tokens) < 2 or not guide.is_current or guide.is_finished or guide.error is not None:
            return 0
        sampling, slot = sequence.request.sampling, sequence.slot
        length = int(self._rows.known_S[slot]) + len(tokens)
        stops = (*sampling.stop_token_ids, *sampling.eos_token_ids)
        can_append = (
            length < sequence.max_len
            and sampling.logprobs < 0
            and not self._rows.prompt_logprobs_S[slot]
            and not set(tokens).intersection(stops)
            and not self._scheduler.placement.attaches(slot)
        )
        return len(tokens) - 1 if can_append else 0

    def _append(
        self,
        record: StepRecord,
        place: int,
        sequence: Sequence,
        guide: GuidedSequence,
        outputs: StepOutputs,
    ) -> None:
        tokens = guide.forced
        for token in tokens:
            guide.accept(token)
        outputs.prompts.extend(self._results.prompt_reports(np.array([sequence.slot], np.intp)))
        outputs.sequences.extend([sequence.id] * len(tokens))
        outputs.tokens.extend(tokens)
        self._scheduler.append(record, place, tokens)
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
