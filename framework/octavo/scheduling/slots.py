"""The host's mirror of the running sequences: one array a field, one entry a slot.

Repeated steps touch only these arrays; per-sequence Python runs when a sequence comes, leaves,
fills a block or is preempted.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo.guided.byte_automaton import AutomatonState
from octavo.scheduling.sequence import Sequence
from octavo.steps.features import features_of
from octavo.steps.layout import StateDiff
from octavo.steps.loads import NO_SPAN
from octavo.steps.slot_fields import STOP_IDS, Ints, SlotIds
from octavo_kernels.row_features import RowFeature


class Yields(NamedTuple):
    """How many tokens a row that samples gives in a step."""

    fewest: int
    most: int


ONE_EACH: Final = Yields(1, 1)


class SlotTable:
    """``known`` and ``confirmed`` are what the host has seen; ``planned`` and ``computed`` are
    ahead of them by the steps under way: the most that there can be once these are done.
    ``epoch_S`` changes when a slot's sequence leaves, so that a late result for it is told apart.
    """

    def __init__(
        self,
        num_slots: int,
        max_model_len: int,
        yields: Yields = ONE_EACH,
        num_stages: int = 1,
    ) -> None:
        """``num_stages``: what a row samples in step s reaches its next step from s + that on."""
        self.yields = yields
        self.is_exact = yields == ONE_EACH
        """Whether the host knows lengths before it knows tokens."""
        self.sequences: list[Sequence | None] = [None] * num_slots
        self.tokens_SL = np.zeros((num_slots, max_model_len), np.int32)
        self.known_S = np.zeros(num_slots, np.int32)
        self.planned_S = np.zeros(num_slots, np.int32)
        self.confirmed_S = np.zeros(num_slots, np.int32)
        self.computed_S = np.zeros(num_slots, np.int32)
        self.num_due_S = np.zeros(num_slots, np.int32)
        """Steps under way in which the row samples; counted where lengths are not exact."""
        self.num_stages = num_stages
        self.ready_step_S = np.zeros(num_slots, np.int64)
        """The step from which on a row that has sampled runs again, or its slot is another's."""
        self.reached_step = 0
        """Slots are ready now whose ``ready_step_S`` is not beyond it."""
        self.max_len_S = np.zeros(num_slots, np.int32)
        self.min_len_S = np.zeros(num_slots, np.int32)
        self.features_S = np.zeros(num_slots, np.int32)
        self.num_logprobs_S = np.full(num_slots, -1, np.int32)
        self.prompt_logprobs_S = np.zeros(num_slots, np.bool_)
        self.most_stop_ids = 0
        """Most of any sequence so far: how many lines of ``stop_ids_KS`` must be read."""
        self.stop_ids_KS = np.full((STOP_IDS, num_slots), -1, np.int32)
        self.sequence_ids_S = np.zeros(num_slots, np.int64)
        self.epoch_S = np.zeros(num_slots, np.int64)
        self.reported_S = np.zeros(num_slots, np.bool_)
        self.block_end_S = np.zeros(num_slots, np.int32)
        """Confirmed tokens at which the row's next block is complete."""
        self.leads_S = np.zeros(num_slots, np.bool_)
        """Rows whose first sample lets the other continuations of their request go on."""
        self.family_held_S = np.zeros(num_slots, np.bool_)
        """Rows that led when they sampled first: the family may sample from the same hidden row."""
        self.held_S = np.zeros(num_slots, np.int32)
        """The line with a row's hidden row, if its last token is computed and not sampled from.

        A slot has its own line, for what is put off, and behind all of these one for its family.
        """
        self.guided_S = np.zeros(num_slots, np.bool_)
        """Rows whose next token must be one that the host's mask allows."""
        self.masked_S = np.zeros(num_slots, np.bool_)
        """Rows whose masks the device makes: their guides are byte automata."""
        self.of_allowed_S = np.zeros(num_slots, np.bool_)
        """Rows whose logprobs are of what their guides allow alone."""
        self.media_end_S = np.zeros(num_slots, np.int32)
        """Up to this token the prompt's media matter, as rows or by the positions they make."""
        self.adapted_S = np.zeros(num_slots, np.bool_)
        """Rows that have an adapter."""
        self.cross_due_S = np.zeros(num_slots, np.bool_)
        """Rows whose blocks for encoded media are still to be filled, by their first step."""
        self.membership = 0
        """Counts every coming and leaving."""
        self._free_slots = list(range(num_slots - 1, -1, -1))

    @property
    def num_free(self) -> int:
        """Slots without a sequence."""
        return len(self._free_slots)

    @property
    def can_enter(self) -> bool:
        """Whether a slot is free, and nothing on its way to it."""
        return self._free_place() is not None

    def _free_place(self) -> int | None:
        for place in range(len(self._free_slots) - 1, -1, -1):
            if self.ready_step_S[self._free_slots[place]] <= self.reached_step:
                return place
        return None

    def ready(self, slots: SlotIds) -> SlotIds:
        """Return the slots whose tokens are back from the last step in which they sampled."""
        if self.num_stages == 1:
            return slots
        return slots[self.ready_step_S[slots] <= self.reached_step]

    def enter(
        self,
        sequence: Sequence,
        computed: int,
        diff: StateDiff,
        *,
        confirmed: bool = True,
        state_line: int = 0,
    ) -> int:
        """Give a sequence a slot; ``computed`` of its tokens are in the cache already.

        ``confirmed`` False: they are being written by a step under way.
        """
        free_place = self._free_place()
        if free_place is None:
            raise IndexError("no slot is free")
        slot = self._free_slots.pop(free_place)
        sampling = sequence.request.sampling
        tokens = sequence.tokens
        num_tokens = len(tokens)
        stop_ids = np.full(STOP_IDS, -1, np.int32)
        ids = (*sampling.stop_token_ids, *sampling.eos_token_ids)
        stop_ids[: len(ids)] = ids
        self.most_stop_ids = max(self.most_stop_ids, len(ids))
        min_len = sequence.prompt_len + sampling.min_tokens

        sequence.slot = slot
        self.membership += 1
        self.sequences[slot] = sequence
        self.sequence_ids_S[slot] = sequence.id
        self.tokens_SL[slot, :num_tokens] = tokens
        self.known_S[slot] = self.planned_S[slot] = num_tokens
        self.num_due_S[slot] = 0
        self.computed_S[slot] = computed
        self.confirmed_S[slot] = computed if confirmed else 0
        self.max_len_S[slot] = sequence.max_len
        self.min_len_S[slot] = min_len
        self.features_S[slot] = int(features_of(sampling))
        self.num_logprobs_S[slot] = sampling.logprobs
        self.prompt_logprobs_S[slot] = sequence.wants_prompt_logprobs
        self.stop_ids_KS[:, slot] = stop_ids
        self.leads_S[slot] = bool(sequence.followers)
        self.family_held_S[slot] = False
        guide, masked = sequence.guide, sequence.automaton is not None
        place = AutomatonState() if guide is None else guide.place
        self.guided_S[slot] = guide is not None and not masked
        self.masked_S[slot] = masked
        self.of_allowed_S[slot] = guide is not None and sampling.logprobs_of_allowed
        self.media_end_S[slot] = sequence.media_end
        self.adapted_S[slot] = bool(sequence.request.adapter)
        self.cross_due_S[slot] = False
        self.reported_S[slot] = sequence.reported or sequence.index > 0
        self.block_end_S[slot] = 0

        adapter = sequence.places.get("adapter", NO_SPAN)
        diff.put_slot(
            slot,
            sampling,
            num_tokens=num_tokens,
            computed=computed,
            prompt_len=sequence.prompt_len,
            min_len=min_len,
            max_len=sequence.max_len,
            num_drafts=0,
            features=int(self.features_S[slot]),
            adapter_first=adapter.first,
            adapter_rank=adapter.length,
            position_delta=sequence.position_delta,
            cross_rows=sequence.num_cross_rows,
            state_line=state_line,
            automaton=sequence.places.get("automaton", NO_SPAN).first,
            automaton_state=place.state,
            automaton_depth=len(place.stack),
            automaton_stack=place.stack,
            seed=np.array([sequence.seed & (2**64 - 1)], np.uint64).view(np.int32),
            stop_ids=stop_ids,
            tokens=tokens,
        )
        return slot

    def plan(self, step_id: int, slots: SlotIds, ends: Ints, sample_slots: SlotIds) -> None:
        """Count a step that was planned: what it computes, and the tokens that it samples."""
        self.computed_S[slots] = ends
        if self.num_stages > 1:
            self.ready_step_S[sample_slots] = step_id + self.num_stages
        if self.is_exact:
            self.planned_S[sample_slots] += 1
        else:
            self.num_due_S[sample_slots] += 1
            self._bound(sample_slots)

    def settle(self, slots: SlotIds) -> None:
        """Count what rows have yielded that sampled in a step: the host knows their tokens."""
        self.confirmed_S[slots] = self.known_S[slots] - 1
        self.num_due_S[slots] -= 1
        self._bound(slots)

    def _bound(self, slots: SlotIds) -> None:
        """Set the most tokens of rows that have begun to sample; the last one is not computed."""
        most = self.known_S[slots] + self.num_due_S[slots] * np.int32(self.yields.most)
        self.planned_S[slots] = most = np.minimum(most, self.max_len_S[slots])
        self.computed_S[slots] = most - 1

    def fewest(self, slots: SlotIds) -> Ints:
        """The fewest tokens of rows once the steps under way are done."""
        if self.is_exact:
            exact: Ints = self.planned_S[slots]
            return exact
        fewest = self.known_S[slots] + self.num_due_S[slots] * np.int32(self.yields.fewest)
        return np.minimum(fewest, self.max_len_S[slots])

    def knows_ends(self, slots: SlotIds) -> NDArray[np.bool_]:
        """Rows of which ``computed`` is how many tokens will be, and not the most there can be."""
        known: NDArray[np.bool_] = self.num_due_S[slots] == 0
        return known

    def most_computed(self, slots: SlotIds, counts: Ints) -> Ints:
        """Tokens that rows need blocks for, to run so many more and the drafts behind the last."""
        ends: Ints = self.computed_S[slots] + counts
        if self.is_exact:
            return ends
        has_drafts = (counts > 0) & (ends == self.planned_S[slots])
        ends += np.where(has_drafts, np.int32(self.yields.most - 1), np.int32(0))
        return np.minimum(ends, self.max_len_S[slots])

    def leave(self, sequence: Sequence) -> None:
        """Take a sequence off its slot, its known tokens with it."""
        slot = sequence.slot
        sequence.tokens = self.tokens_SL[slot, : self.known_S[slot]].copy()
        sequence.slot = -1
        self.sequences[slot] = None
        self.epoch_S[slot] += 1
        self.membership += 1
        self._free_slots.append(slot)

    def at(self, slot: int) -> Sequence:
        """The sequence of an occupied slot."""
        sequence = self.sequences[slot]
        if sequence is None:
            raise IndexError(f"slot {slot} is free")
        return sequence

    def features_for(self, slots: SlotIds) -> Ints:
        """RowFeature bits for the sample to come: the ban of stop ids ends at the least length."""
        features = self.features_S[slots]
        past = self.fewest(slots) >= self.min_len_S[slots]
        result: Ints = np.where(past, features & ~int(RowFeature.MIN_TOKENS), features)
        return result
