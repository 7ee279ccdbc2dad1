"""Continuous batching: which rows run in the next step, and with how many tokens each."""

from __future__ import annotations

import numpy as np

from octavo.cache.groups import CacheLayout
from octavo.cache.pool import BlockPool
from octavo.cache.state_lines import StateLines
from octavo.cache.tables import BlockTables
from octavo.config import EngineConfig
from octavo.errors import ConfigError
from octavo.guided.sequence import CompiledGuide
from octavo.messages import EngineRequest, SequenceEnd, error_end
from octavo.residency.adapters import KnownAdapters
from octavo.scheduling.admission import Admission
from octavo.scheduling.corrections import Corrections
from octavo.scheduling.family import automaton_pool, family_of, guide_family
from octavo.scheduling.fetching import Fetching
from octavo.scheduling.limits import refusal_of
from octavo.scheduling.media import MediaScheduler
from octavo.scheduling.packing import Packing
from octavo.scheduling.placement import Placement
from octavo.scheduling.record import StepRecord
from octavo.scheduling.repeated import RepeatedSteps
from octavo.scheduling.sequence import Sequence
from octavo.scheduling.slots import ONE_EACH, SlotTable, Yields
from octavo.scheduling.waiting import WaitingQueue
from octavo.steps.layout import StateLayout
from octavo.steps.loads import POOL_WORDS
from octavo.steps.plan import StepPlan
from octavo.steps.slot_fields import Ints, SlotIds
from octavo_registry.kv_store import KVStore


class Scheduler:
    """Plans steps ahead of their results.

    A row is planned with the token that a step under way will sample for it; the host learns that
    token later (``StepResults``). Rows that turn out to have ended waste that step's place only.
    """

    def __init__(
        self,
        config: EngineConfig,
        layout: CacheLayout,
        state: StateLayout,
        *,
        num_blocks: int,
        num_swap_blocks: int,
        num_lines: int = 0,
        num_swap_lines: int = 0,
        model_identity: str,
        vocab_size: int,
        whole_media: bool = False,
        automaton_words: int = POOL_WORDS,
        store: KVStore | None = None,
        yields: Yields = ONE_EACH,
        num_stages: int = 1,
    ) -> None:
        """``whole_media``: no chunk of a prompt may end inside an item.

        With several stages at most one step more than these is to be under way.
        """
        limits = config.scheduler
        self.slot_table = SlotTable(state.num_slots, state.max_model_len, yields, num_stages)
        max_blocks = layout.table_blocks(state.max_model_len)
        tables = BlockTables(layout, BlockPool(num_blocks), state.num_slots, max_blocks)
        lines = None
        if layout.lines is not None:
            if store is not None:
                raise ConfigError("a KV store has no states, which this model needs with blocks")
            lines = StateLines(
                num_lines,
                state.num_slots,
                num_swap_lines=num_swap_lines,
                num_logged=layout.lines.num_logged,
                checkpoint_tokens=config.cache.whole_checkpoint_tokens,
            )
        self.adapters = KnownAdapters(config.lora.num_rank_rows, config.lora.highest_rank)
        self.automata = automaton_pool(automaton_words)
        self.placement = Placement(config, tables, self.slot_table, state, num_swap_blocks, lines)
        self.fetching = None if store is None else Fetching(store, self.placement)
        self.waiting = WaitingQueue(by_priority=limits.scheduling_policy == "priority")
        self.sequences: dict[int, Sequence] = {}
        self.refused: list[SequenceEnd] = []
        """Ends of requests that were never queued; the next step's outputs carry them."""
        self.preempted: list[int] = []
        """Sequences preempted since the last outputs."""
        self.suspects: dict[int, Sequence] = {}
        """Sequences by id of a batch that raised; they run alone until they have passed it."""
        self.num_under_way = 0
        self.corrections = Corrections(self.slot_table)
        self.media = MediaScheduler.of(config, layout, whole=whole_media)
        self._config = limits
        self._most_of_prompt = limits.long_prefill_token_threshold or limits.max_num_batched_tokens
        self._model_identity = model_identity
        self._vocab_size = vocab_size
        self._packing = Packing(
            self.slot_table,
            self.placement,
            self.corrections,
            media=self.media,
            adapters=self.adapters.pool,
            automata=self.automata,
        )
        self._admission = Admission(self.waiting)
        self._num_arrivals = 0
        self._step_id = 0
        self._repeated = RepeatedSteps(self.slot_table, self.placement)
        self._order = np.zeros(0, np.intp)
        self._order_membership = 0

    @property
    def has_work(self) -> bool:
        """Whether any sequence or copy has not ended, or an end has not been told yet."""
        has_work = bool(self.sequences or self.refused or self.num_under_way)
        return has_work or (self.fetching is not None and self.fetching.is_busy)

    def add(self, request: EngineRequest, guide: CompiledGuide | None = None) -> None:
        """Queue a request, or note why not; ``guide`` is the one that it asked for."""
        refusal = refusal_of(
            request,
            self._config,
            self.waiting,
            is_in_use=self.sequences.__contains__,
            media=self.media,
        )
        if refusal is not None:
            self.refuse(request, refusal)
            return
        self._num_arrivals += 1
        needs = self.adapters.needs(request.adapter)
        family = family_of(request, self._num_arrivals, self._model_identity, needs)
        if guide is not None:
            error = guide_family(family, guide, self._vocab_size, self.automata)
            if error is not None:
                self.refuse(request, error)
                return
        leader = family[0]
        if leader.guide is not None and leader.guide.is_finished:  # nothing may follow the prompt
            self.refused += [SequenceEnd(each.id, "stop", is_text=True) for each in family]
            return
        self.adapters.begin(request.adapter, len(family))
        self.sequences |= {sequence.id: sequence for sequence in family}
        self.waiting.push(leader)

    def refuse(self, request: EngineRequest, cause: Exception) -> None:
        """End a request that was never queued; the next step's outputs say so."""
        self.refused += [error_end(sequence, cause) for sequence in request.sequences]

    def abort(self, sequence_ids: list[int]) -> None:
        """End sequences now; unknown ids are ignored."""
        for sequence_id in sequence_ids:
            sequence = self.sequences.get(sequence_id)
            if sequence is not None:
                self.end(sequence)

    def end(self, sequence: Sequence) -> None:
        """Free all that a sequence holds; its followers, if any, go on by themselves."""
        del self.sequences[sequence.id]
        self.suspects.pop(sequence.id, None)
        if sequence.slot >= 0:
            self.placement.vacate(sequence)
        elif sequence.leader is not None and sequence in sequence.leader.followers:
            sequence.leader.followers.remove(sequence)
        elif self.fetching is None or not self.fetching.abandon(sequence):
            self.placement.forget_swapped(sequence)
            self.placement.leave_family(sequence)
            self.waiting.remove(sequence)
        self._release_followers(sequence)
        self.adapters.end(sequence.request.adapter)

    def requeue(self, sequence: Sequence, *, after_fault: bool = False) -> None:
        """Preempt a running sequence: it waits again at its place in the order."""
        self.preempted.append(sequence.id)
        self.placement.preempt(sequence, after_fault=after_fault)
        sequence.is_asked = False
        self.waiting.push(sequence)

    def start_over(self) -> None:
        """A step raised, and nobody knows what it has told the device, or written there.

        It may not have brought a row's table, by which a step behind it wrote to blocks of others.
        So all rows wait again, and nothing that was kept is used again.
        """
        for slot in self.running_order().tolist():
            self.requeue(self.slot_table.at(slot), after_fault=True)
        for sequence in () if self.fetching is None else self.fetching.start_over():
            self.waiting.push(sequence)
        self.placement.start_over(self.sequences.values())
        self.media.after_fault()
        self.adapters.pool.after_fault(reload=True)
        self.automata.after_fault(reload=False)

    def _release_followers(self, leader: Sequence) -> None:
        for follower in leader.followers:
            self.waiting.push(follower)
        leader.followers = []

    def running_order(self) -> SlotIds:
        """Occupied slots, first come first."""
        if self._order_membership != self.slot_table.membership:
            occupied = [s for s in self.slot_table.sequences if s is not None]
            occupied.sort(key=self.waiting.sort_key)
            self._order = np.array([s.slot for s in occupied], np.intp)
            self._order_membership = self.slot_table.membership
        return self._order

    def schedule(self) -> tuple[StepPlan, StepRecord] | None:
        """Plan the next step; None when there is nothing to run now."""
        self.slot_table.reached_step = self._step_id + 1
        if self.fetching is not None:
            num_done = self._step_id - self.num_under_way
            for sequence in self.fetching.take_ended(self._step_id, num_done):
                self.waiting.push(sequence)
        if not self.suspects and not (self.slot_table.num_free and self.waiting.peek()):
            repeated = self._repeated.next(self._step_id + 1)
            if repeated is not None:
                self._step_id += 1
                self.num_under_way += 1
                return repeated
        self.media.begin_step()
        slots, counts, most_drafts = self._choose()
        num_ahead = self.slot_table.num_stages - self.num_under_way
        if len(slots) == 0 and num_ahead > 1:
            # Nobody else is to run: whose last step is over does not wait for its turn.
            self.slot_table.reached_step = self._step_id + num_ahead
            slots, counts, most_drafts = self._choose()
        if len(slots) == 0:
            return None
        self._step_id += 1
        plan, record = self._packing.pack(self._step_id, slots, counts, most_drafts)
        if self.placement.lines is not None:
            ends, moves = record.ends, self.placement.next_plan.moves.lines
            is_known = self.slot_table.knows_ends(slots) & (plan.most_yield == 1)
            self.placement.lines.follow(slots, ends - counts, ends, is_known, moves)
        self.slot_table.plan(self._step_id, slots, record.ends, record.sample_slots)
        self._let_followers_go(record.sample_slots)
        self.num_under_way += 1
        self._repeated.remember(plan, record)
        return plan, record

    def _choose(self) -> tuple[SlotIds, Ints, int]:
        """The rows of the next step, their tokens, and how many drafts there is room for."""
        budget = self._config.max_num_batched_tokens
        if self.suspects:
            return *self._schedule_suspect(budget), 0
        slots, counts, preempted = self._schedule_running(budget)
        left, num_running = budget - int(counts.sum()), len(slots)
        if not preempted:
            slots, counts = self._admit(slots, counts, left)
        # Who enters has no drafts, nor blocks for them.
        return slots, counts, left if len(slots) == num_running else 0

    def _let_followers_go(self, sample_slots: SlotIds) -> None:
        leads_S = self.slot_table.leads_S
        for slot in sample_slots[leads_S[sample_slots]].tolist():
            leads_S[slot] = False
            leader = self.slot_table.at(slot)
            self.slot_table.family_held_S[slot] = True
            if self.placement.lines is not None:
                moves = self.placement.next_plan.moves.lines
                self.placement.lines.keep_for_family(slot, len(leader.followers), moves)
            self._release_followers(leader)

    def _schedule_running(self, budget: int) -> tuple[SlotIds, Ints, bool]:
        slot_table = self.slot_table
        order = self.running_order()
        # A row whose last token is being sampled frees its blocks by itself, and sooner.
        victims = order[slot_table.fewest(order) < slot_table.max_len_S[order]]
        slots = slot_table.ready(victims)
        remaining = slot_table.planned_S[slots] - slot_table.computed_S[slots]
        if self._config.long_prefill_token_threshold:  # media are not cut: some must come whole
            has_media = slot_table.media_end_S[slots] > slot_table.computed_S[slots]
            limited = np.minimum(remaining, self._most_of_prompt)
            remaining = np.where(has_media, remaining, limited)
        # Decodes first: a long prompt's chunk takes what is left of the budget.
        by_kind = np.argsort(remaining > 1, kind="stable")
        slots, remaining = slots[by_kind], remaining[by_kind]
        samples_only = remaining == 0  # from a hidden row that is held
        before = np.cumsum(remaining) - remaining
        counts = np.clip(budget - before, 0, remaining).astype(np.int32)
        needs_media = slot_table.media_end_S[slots] > slot_table.computed_S[slots]
        needs_media |= slot_table.cross_due_S[slots]
        for row in np.flatnonzero(needs_media).tolist():
            slot = int(slots[row])
            start = int(slot_table.computed_S[slot])
            counts[row] = self._clip(slot_table.at(slot), start, int(counts[row]))
        if self.placement.lines is not None:  # media are not cut: some must come whole
            cut = self.placement.lines.cut(slot_table.computed_S[slots], counts)
            counts = np.where(needs_media, counts, cut)
        runs = samples_only | (counts > 0)
        slots, counts = slots[runs], counts[runs]
        return self._make_room(slots, counts, victims)

    def _make_room(
        self, slots: SlotIds, counts: Ints, victims: SlotIds
    ) -> tuple[SlotIds, Ints, bool]:
        """Give rows the blocks that they lack; preempt from the end of ``victims`` as needed.

        Returns the rows that are left, and whether any was preempted.
        """
        tables, preempted = self.placement.tables, False
        while len(slots):
            ends = self.slot_table.most_computed(slots, counts)
            if int(tables.num_new_blocks(slots, ends).sum()) <= tables.pool.num_available:
                tables.grow(slots, ends, self.placement.next_plan.diff)
                break
            victim, victims = int(victims[-1]), victims[:-1]
            self.requeue(self.slot_table.at(victim))
            keep = slots != victim
            slots, counts = slots[keep], counts[keep]
            preempted = True
        return slots, counts, preempted

    def _admit(self, slots: SlotIds, counts: Ints, budget: int) -> tuple[SlotIds, Ints]:
        entered: list[tuple[int, int]] = []
        # With several stages a step has its share of the rows, so that all steps are alike.
        num_running = len(self.slot_table.sequences) - self.slot_table.num_free
        most_rows = -(-(num_running + len(self.waiting)) // self.slot_table.num_stages)
        while budget > 0 and len(slots) + len(entered) < most_rows:
            sequence = self._admission.next()
            if sequence is None:
                break
            if self.fetching is not None and self.fetching.begin(sequence, self._step_id):
                self.waiting.remove(sequence)
                continue
            most = budget if sequence.request.media else min(budget, self._most_of_prompt)
            count = self.placement.place(sequence, most, self._clip)
            if sequence.slot < 0:
                break
            self.waiting.remove(sequence)
            if count or self._samples_only(sequence.slot):  # else its media come in the next step
                entered.append((sequence.slot, count))
                budget -= count
        if not entered:
            return slots, counts
        more_slots, more_counts = zip(*entered, strict=True)
        return np.append(slots, more_slots), np.append(counts, np.array(more_counts, np.int32))

    def _schedule_suspect(self, budget: int) -> tuple[SlotIds, Ints]:
        """Run one sequence of a batch that raised, alone and with nothing else under way."""
        # Blocks on their way to or from a store may leave too few for a sequence alone.
        if self.num_under_way or (self.fetching is not None and self.fetching.is_busy):
            return np.zeros(0, np.intp), np.zeros(0, np.int32)
        self.slot_table.reached_step = self._step_id + self.slot_table.num_stages
        sequence = min(self.suspects.values(), key=self.waiting.sort_key)
        slot, others = sequence.slot, self.running_order()
        if slot >= 0:
            start = int(self.slot_table.computed_S[slot])
            count = min(int(self.slot_table.planned_S[slot]) - start, budget)
            count = self._clip(sequence, start, count)
            slots, counts = np.array([slot], np.intp), np.array([count], np.int32)
            return self._make_room(slots, counts, others[others != slot])[:2]
        while True:
            count = self.placement.place(sequence, budget, self._clip)
            if sequence.slot >= 0:
                break
            victim, others = int(others[-1]), others[:-1]
            self.requeue(self.slot_table.at(victim))
        self.waiting.remove(sequence)
        return np.array([sequence.slot], np.intp), np.array([count], np.int32)

    def _clip(self, sequence: Sequence, start: int, count: int) -> int:
        """How many of those tokens have their media in the step that is being planned."""
        if not sequence.request.media:
            return count
        return self.media.clip(self.slot_table, sequence, start, count)

    def _samples_only(self, slot: int) -> bool:
        return bool(self.slot_table.computed_S[slot] == self.slot_table.planned_S[slot])
