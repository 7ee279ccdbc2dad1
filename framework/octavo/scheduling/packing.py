"""From the rows chosen for a step to what the device does in it, and what the host remembers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from octavo.messages import PackedAdapter
from octavo.residency.pool import DevicePool
from octavo.scheduling.corrections import Corrections
from octavo.scheduling.family import AutomatonPool
from octavo.scheduling.media import MediaScheduler
from octavo.scheduling.placement import Placement
from octavo.scheduling.record import StepRecord
from octavo.scheduling.sequence import Sequence
from octavo.scheduling.slots import SlotTable
from octavo.steps.loads import AdapterLoad, AutomatonLoad, Span
from octavo.steps.plan import Sections, StepPlan, pack_sections
from octavo.steps.slot_fields import Ints, SlotIds
from octavo_kernels.row_features import work_of


class Packing:
    """Makes plans; the slot table is as it was before the step, and stays so."""

    def __init__(
        self,
        slot_table: SlotTable,
        placement: Placement,
        corrections: Corrections,
        *,
        media: MediaScheduler,
        adapters: DevicePool[PackedAdapter, Span],
        automata: AutomatonPool,
    ) -> None:
        self._slot_table = slot_table
        self._placement = placement
        self._corrections = corrections
        self._media = media
        self._adapters = adapters
        self._automata = automata

    def pack(
        self, step_id: int, slots: SlotIds, counts: Ints, most_drafts: int
    ) -> tuple[StepPlan, StepRecord]:
        """Plan ``counts`` tokens of the rows at ``slots``, with all that waits for a plan.

        Rows of 0 tokens sample from hidden rows that are held. If no row has more than a token,
        there is room for ``most_drafts`` drafts besides.
        """
        slot_table, placement, media = self._slot_table, self._placement, self._media
        all_slots, held_slots = slots, slots[counts == 0]
        all_ends = slot_table.computed_S[slots] + counts
        if len(held_slots):
            slots, counts = slots[counts > 0], counts[counts > 0]
        starts = slot_table.computed_S[slots]
        ends = starts + counts
        query_starts = np.zeros(len(slots) + 1, np.int32)
        np.cumsum(counts, out=query_starts[1:])
        samples = ends == slot_table.planned_S[slots]
        sample_slots = np.concatenate([slots[samples], held_slots])
        features = slot_table.features_for(sample_slots)
        prompts = _prompt_rows(slot_table, slots, counts, query_starts)
        encoded = media.sections(slot_table, slots, starts, query_starts)
        across = media.fills(slot_table, slots, placement.tables)
        self._corrections.put(placement.next_plan.diff)
        carried = placement.take_next_plan()
        indices, values = carried.diff.joined()
        buffer, sizes = pack_sections(
            Sections(
                diff_indices=indices,
                diff_values=values,
                slots=slots,
                query_starts=query_starts,
                sample_slots=sample_slots,
                logit_tokens=np.concatenate([query_starts[1:][samples] - 1, prompts.tokens]),
                prompt_targets=prompts.targets,
                held=slot_table.held_S[held_slots],
                family_rows=np.flatnonzero(slot_table.leads_S[sample_slots]),
                positions=encoded.positions,
                media_tokens=encoded.tokens,
                media_rows=encoded.rows,
                cross_rows=across.rows,
                cross_slots=across.slots,
            )
        )
        plan = StepPlan(
            step_id=step_id,
            buffer=buffer,
            sizes=sizes,
            num_tokens=int(query_starts[-1]),
            slots=slots,
            query_lens=counts,
            context_lens=ends,
            features=features,
            work=work_of(features),
            num_logprobs=int(slot_table.num_logprobs_S[sample_slots].max(initial=-1)),
            num_prompt_logprobs=max(
                (s.request.sampling.prompt_logprobs for s, _ in prompts.spans), default=-1
            ),
            of_allowed=slot_table.of_allowed_S[sample_slots],
            awaits_masks=bool(slot_table.guided_S[sample_slots].any()),
            masked=bool(slot_table.masked_S[sample_slots].any()),
            attach=carried.attach,
            detach=carried.detach,
            moves=carried.moves,
            encode=media.take_loads(),
            adapters=[AdapterLoad(*load) for load in self._adapters.take_loads()],
            automata=[
                AutomatonLoad(span.first, guide.words, guide.vocabulary)
                for span, guide in self._automata.take_loads()
            ],
            has_adapters=bool(slot_table.adapted_S[all_slots].any()),
            cuts=media.cuts(slot_table, slots, starts, counts),
        )
        record = StepRecord(
            slots=all_slots,
            epochs=slot_table.epoch_S[all_slots],
            ends=all_ends,
            sample_slots=sample_slots,
            sample_epochs=slot_table.epoch_S[sample_slots],
            prompt_spans=prompts.spans,
            membership=slot_table.membership,
        )
        if not slot_table.is_exact and most_drafts and plan.is_decode:
            self._make_room_for_drafts(plan, slots, most_drafts)
        return plan, record

    def _make_room_for_drafts(self, plan: StepPlan, slots: SlotIds, most_drafts: int) -> None:
        slot_table, most = self._slot_table, self._slot_table.yields.most
        plan.most_yield = most
        plan.num_tokens += min(most_drafts, (most - 1) * plan.num_rows)
        plan.context_lens = slot_table.most_computed(slots, plan.query_lens)


class _PromptRows(NamedTuple):
    """The part of a step that is there for prompt logprobs alone."""

    tokens: Ints
    """Tokens of the step whose logits are needed."""
    targets: Ints
    """What follows each of them in its prompt."""
    spans: list[tuple[Sequence, int]]
    """Whose they are, and how many."""


def _prompt_rows(
    slot_table: SlotTable, slots: SlotIds, counts: Ints, query_starts: Ints
) -> _PromptRows:
    tokens = [np.zeros(0, np.int32)]
    targets = [np.zeros(0, np.int32)]
    spans = []
    for row in np.flatnonzero(slot_table.prompt_logprobs_S[slots]).tolist():
        slot = int(slots[row])
        sequence = slot_table.at(slot)
        start = int(slot_table.computed_S[slot])
        end = min(start + int(counts[row]), sequence.prompt_len - 1)
        if end > start:
            first = query_starts[row]
            tokens.append(np.arange(first, first + end - start, dtype=np.int32))
            targets.append(slot_table.tokens_SL[slot, start + 1 : end + 1])
            spans.append((sequence, end - start))
    return _PromptRows(np.concatenate(tokens), np.concatenate(targets), spans)
