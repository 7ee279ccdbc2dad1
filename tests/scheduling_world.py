"""A scheduler on a device that checks every block, with what each request must give."""

from __future__ import annotations

import itertools
import random
from collections import Counter, deque

import numpy as np

from late_masks import WilfulFiller
from octavo.cache.groups import make_layout
from octavo.config import CacheConfig, EngineConfig, LoRAConfig, ModelConfig, SchedulerConfig
from octavo.config.media import MediaConfig
from octavo.guided.sequence import CompiledGuide
from octavo.messages import AdapterHead, EngineRequest, PackedAdapter, StepOutputs, TokenSampling
from octavo.scheduling.guided import GuidedRows
from octavo.scheduling.record import StepRecord
from octavo.scheduling.results import StepResults
from octavo.scheduling.scheduler import Scheduler
from octavo.steps.layout import StateLayout
from octavo.steps.plan import StepPlan
from octavo_kernels.row_features import RowFeature
from plan_crossing import Crossing
from plan_indices import check_deltas, check_indices, held_kinds, made_positions
from resident_checks import ResidentChecks, has_room
from scheduling_cases import (
    ADAPTERS,
    AUTOMATON_WORDS,
    MAX_LEN,
    MEDIA_ROWS,
    MOST_TOKENS,
    NUM_RANK_ROWS,
    POISON,
    SPECS,
    VOCAB,
    Case,
    sound,
)
from scheduling_checks import burst_facts, check_logprobs
from shadow_automata import automaton_guide
from shadow_device import ShadowDevice, expected_tokens
from shadow_lines import (
    CHECKPOINT_TOKENS,
    NUM_LINES,
    NUM_SWAP_LINES,
    LineDevice,
    check_lines,
)
from shadow_step import ShadowStep
from shadow_store import ShadowStore


class Nobody:
    """No plugin is there to blame."""

    def blame(self, number: int) -> Exception:
        return RuntimeError(number)

    def name(self, error: Exception) -> Exception:
        return error


class World:
    """A scheduler on a shadow device, with what each request must give.

    ``seen`` counts what repeated steps, those planned from the last one, went through: ``FACTS``.
    """

    def __init__(self, case: Case, seen: Counter[str], walk: str = "") -> None:
        block_tokens = case.block_tokens
        layout = make_layout(
            SPECS[case.kind], lambda spec: 64, block_tokens, num_logged=case.num_logged
        )
        config = EngineConfig(
            model=ModelConfig(model="none"),
            cache=CacheConfig(block_size=block_tokens, checkpoint_tokens=CHECKPOINT_TOKENS),
            scheduler=SchedulerConfig(
                max_num_seqs=6,
                max_num_batched_tokens=MOST_TOKENS,
                preemption_mode=case.mode,
                scheduling_policy=case.policy,
                async_depth=case.depth,
                long_prefill_token_threshold=case.most_of_prompt,
            ),
            lora=LoRAConfig(enable_lora=True, lora_pool_rank=NUM_RANK_ROWS),
            media=MediaConfig(media_cache_tokens=MEDIA_ROWS),
            logits_processors=("one",) if case.has_processors else (),
        )
        state = StateLayout(
            num_slots=6,
            max_model_len=MAX_LEN,
            max_blocks=layout.table_blocks(MAX_LEN),
            num_groups=len(layout.groups),
        )
        num_blocks = max(1, case.num_blocks * len(layout.groups))
        self.store = ShadowStore(self, layout, random.Random(walk)) if case.has_store else None
        self.scheduler = Scheduler(
            config,
            layout,
            state,
            num_blocks=num_blocks,
            num_swap_blocks=9,
            num_lines=NUM_LINES,
            num_swap_lines=NUM_SWAP_LINES,
            model_identity="m",
            vocab_size=VOCAB,
            automaton_words=AUTOMATON_WORDS,
            store=self.store,
            yields=case.yields,
            num_stages=case.num_stages,
        )
        self.residents = ResidentChecks(self.scheduler)
        self.hears = layout.max_cross_rows > 0
        self.results = StepResults(self.scheduler, enable_prefix_caching=True, faults=Nobody())
        self.guided = GuidedRows(self.scheduler, self.results)
        self.guided._filler = self.filler = WilfulFiller()
        self.awaiting: tuple[StepRecord, ShadowStep] | None = None
        self.device = (LineDevice if layout.lines else ShadowDevice)(
            layout,
            state,
            num_blocks,
            9,
            VOCAB,
            has_processors=case.has_processors,
            num_rank_rows=NUM_RANK_ROWS,
            num_media_rows=MEDIA_ROWS,
            num_automaton_words=AUTOMATON_WORDS,
            yields=case.yields,
            num_stages=case.num_stages,
        )
        self.crossing = Crossing(layout, state, num_blocks, 9)
        # As a field of the device's state will have it, which is written when a row enters.
        self.device.sampling.max_len_S = self.scheduler.slot_table.max_len_S
        self.held: set[str] = set()
        for adapter in ADAPTERS:
            self.hold(adapter)
        self.device.raise_for = POISON
        self.under_way: deque[tuple[bool, StepRecord, ShadowStep]] = deque()
        """Whether it is repeated, what the host remembers, what the device does."""
        self.depth = case.depth
        self.num_stages = case.num_stages
        self.seen = seen
        self.last_plan: StepPlan | None = None
        self.next_id = 0
        self.requests: dict[int, EngineRequest] = {}
        self.expected: dict[int, list[int]] = {}
        self.poisoned: set[int] = set()
        self.got: dict[int, list[int]] = {}
        self.ends: dict[int, str] = {}
        self.aborted: set[int] = set()
        self.alone: set[int] = set()
        """Sequences of steps that raised with no other in them."""

    def add(
        self,
        prompt,
        n,
        sampling: TokenSampling,
        priority=0,
        salt="",
        guide=None,
        adapter="",
        is_automaton=False,
    ) -> None:
        """``is_automaton``: the device is to walk the guide."""
        adapter = adapter if adapter in self.held else ""
        ids = tuple(range(self.next_id, self.next_id + n))
        self.next_id += n
        heard = (sound(prompt[0], len(prompt)),) if self.hears else ()
        request = EngineRequest(
            request_id=str(ids[0]),
            sequences=ids,
            prompt_token_ids=prompt,
            sampling=sampling,
            priority=priority,
            cache_salt=salt,
            adapter=adapter,
            media=heard,
            positions=b"" if heard else made_positions(prompt, sampling.max_tokens),
        )
        compiled = None
        if guide is not None:
            compiled = CompiledGuide(automaton_guide(guide) if is_automaton else guide)
        self.scheduler.add(request, compiled)
        for index, sequence in enumerate(ids):
            self.requests[sequence] = request
            self.expected[sequence] = expected_tokens(
                prompt, sampling, index, VOCAB, guide, adapter, heard
            )
            self.got[sequence] = []
        if POISON in prompt:
            self.poisoned.update(ids)

    def hold(self, adapter: str) -> None:
        """Load it, or unload it where it is."""
        if adapter in self.held:
            self.held.remove(adapter)
            self.scheduler.adapters.remove(adapter)
        else:
            self.held.add(adapter)
            head = AdapterHead(
                content_hash=adapter, rank=ADAPTERS[adapter], dtype="float32", shapes={}
            )
            self.scheduler.adapters.add(PackedAdapter(head, memoryview(b"")))

    def step(self) -> None:
        """As EngineCore's."""
        planned = None
        if has_sampled := self.awaiting is not None:
            self.sample_guided(*self.awaiting)
        while self.awaiting is None and len(self.under_way) < self.depth:
            planned = self.scheduler.schedule()
            if planned is None:
                break
            self.launch(*planned)
            if has_sampled or self.awaiting is None:
                break
            has_sampled = True
            self.sample_guided(*self.awaiting)
        has_room = planned is not None and len(self.under_way) < self.depth
        if not has_sampled and self.under_way and not has_room:
            self.collect()

    def launch(self, plan: StepPlan, record: StepRecord) -> None:
        rows = self.scheduler.slot_table
        is_beyond = rows.planned_S[record.slots] > rows.max_len_S[record.slots]
        assert not is_beyond.any(), "a step beyond the end"
        assert plan.num_tokens <= MOST_TOKENS
        is_repeated = plan.repeats > 0
        if is_repeated:
            self.note_repeated(plan)
        self.residents.check_loads(plan)
        plan = self.last_plan = self.crossing.cross(plan)
        check_indices(plan, self.device, rows, self.requests)
        self.seen["positions"] += plan.sizes.positions > 0
        self.seen.update(held_kinds(plan, self.device.state.num_slots))
        step = self.device.submit(plan)
        tables = self.scheduler.placement.tables
        held = itertools.chain.from_iterable(each for s in plan.slots for each in tables.held(s))
        moved = [*plan.moves.swap_out, *map(reversed, plan.moves.swap_in)]
        copied = [*itertools.chain.from_iterable(plan.moves.copy)]
        if fetching := self.scheduler.fetching:
            assert not (self.scheduler.suspects and fetching.is_busy), "a suspect is not alone"
            coming = {
                block
                for fetch in fetching._fetches
                for blocks in fetch.blocks_by_group
                for block in blocks[fetch.first :].tolist()
            }
            assert not coming & {*copied, *(block for block, _ in plan.moves.swap_out)}
        step.step_id = plan.step_id
        step.blocks = frozenset((*map(int, held), *(block for block, _ in moved), *copied))
        if not self.device.broken:
            check_deltas(plan, self.device, rows, self.requests)
        self.under_way.append((is_repeated, record, step))
        if plan.awaits_masks:
            self.awaiting = record, step

    def sample_guided(self, record: StepRecord, step: ShadowStep) -> None:
        if len(self.under_way) > self.num_stages:
            self.collect()
        if len(self.under_way) <= self.num_stages:
            self.awaiting = None
            outputs = self.results.take_events()
            step.mask(self.guided.masks(record, outputs))
            self.seen["guided"] += 1
            self.seen["appended"] += len(outputs.tokens)
            check_logprobs(outputs, self.requests, self.got)
            self.take(outputs)

    def note_repeated(self, plan: StepPlan) -> None:
        self.seen["steps"] += 1
        self.seen["adapters"] += plan.has_adapters
        assert not plan.adapters, "an adapter is copied again"
        assert not plan.automata, "an automaton is copied again"
        self.seen["automata"] += plan.masked
        aside = self.scheduler.waiting.peek_aside()
        if aside is not None:
            automata = self.scheduler.automata
            lacks_words = any(p is automata and not has_room(p, i) for p, i in aside.needs)
            self.seen["waiting for words" if lacks_words else "waiting for rank rows"] += 1
        self.seen["a queue"] += len(self.scheduler.waiting) > 0
        self.seen["new blocks"] += plan.sizes.diff_indices > 0
        self.seen["logprobs"] += plan.num_logprobs >= 0
        self.seen["bias"] += bool((plan.features & RowFeature.BIAS).any())
        self.seen["min_tokens"] += bool((plan.features & RowFeature.MIN_TOKENS).any())

    def collect(self) -> None:
        is_repeated, record, pending = self.under_way.popleft()
        self.seen["left"] += (
            is_repeated and record.membership != self.scheduler.slot_table.membership
        )
        try:
            result = pending.result()
        except RuntimeError as error:
            if not record.void:
                self.residents.after_fault()
                self.device.broken = False  # all that built on it is void now
                if len(record.slots) == 1:
                    self.alone.add(int(self.scheduler.slot_table.sequence_ids_S[record.slots[0]]))
            later = [r for _, r, _ in self.under_way]
            self.seen["raised"] += is_repeated
            self.take(self.results.fail(record, later, error))
        else:
            self.device.sampling.hear(pending.step_id)
            ids = self.scheduler.slot_table.sequence_ids_S[record.sample_slots].tolist()
            outputs = self.results.apply(record, result)
            if result.counts_R is not None:
                given = dict(zip(ids, result.counts_R.tolist(), strict=True))
                self.seen.update(burst_facts(given, outputs))
            check_logprobs(outputs, self.requests, self.got)
            self.take(outputs)
            self.seen["ended"] += is_repeated and bool(outputs.ends)

    def take(self, outputs: StepOutputs) -> None:
        for sequence, tokens in outputs.by_sequence():
            assert sequence not in self.ends, "a token after the end"
            assert sequence not in self.aborted, "a token after the abort"
            self.got[sequence] += tokens
        for end in outputs.ends:
            assert end.sequence not in self.ends, "a sequence ended twice"
            self.ends[end.sequence] = end.reason
            if end.reason == "error":
                assert end.sequence in self.alone
            else:
                assert end.sequence not in self.poisoned
                assert end.reason in ("stop", "length"), end.error
                assert self.got[end.sequence] == self.expected[end.sequence]

    def live(self) -> list[int]:
        return list(self.scheduler.sequences)

    def abort(self, sequence: int) -> None:
        self.scheduler.abort([sequence])
        self.aborted.add(sequence)

    def preempt(self, pick: int) -> None:
        order = self.scheduler.running_order()
        if len(order):
            self.seen["preempted"] += any(is_repeated for is_repeated, _, _ in self.under_way)
            self.scheduler.requeue(self.scheduler.slot_table.at(int(order[pick % len(order)])))

    def check(self) -> None:
        tables = self.scheduler.placement.tables
        pool = tables.pool
        refs = np.zeros(pool.num_blocks, np.int32)
        for slot, sequence in enumerate(self.scheduler.slot_table.sequences):
            for blocks in tables.held(slot):
                assert sequence is not None or len(blocks) == 0
                np.add.at(refs, blocks, 1)
        if fetching := self.scheduler.fetching:
            for fetch in fetching._fetches:
                self.seen["came for nobody"] += fetch.sequence is None
                for blocks in fetch.blocks_by_group:
                    np.add.at(refs, blocks[blocks != 0], 1)
            for stored in fetching._stored:
                if stored.behind is None:
                    np.add.at(refs, stored.blocks, 1)
        assert (refs == pool.refs).all()
        assert refs[0] == 0
        if self.scheduler.placement.lines is not None:
            check_lines(self.scheduler)
        assert int((refs > 0).sum()) == pool.num_live
        rows = self.scheduler.slot_table
        occupied = [slot for slot, sequence in enumerate(rows.sequences) if sequence is not None]
        assert (rows.confirmed_S[occupied] <= rows.computed_S[occupied]).all()
        live = Counter(s.request.adapter for s in self.scheduler.sequences.values())
        known = self.scheduler.adapters._known
        assert {name: it.num_live for name, it in known.items()} == {n: live[n] for n in known}
        self.residents.check()
        assert known.keys() == self.held | (live.keys() - {""})
        for sequence, got in self.got.items():
            assert got == self.expected[sequence][: len(got)] or sequence in self.poisoned

    def drain(self) -> None:
        for _ in range(2_000):
            if self.scheduler.has_work:
                self.step()
        assert not self.scheduler.has_work, "work is left over that never runs"
        for sequence in self.expected:
            assert (sequence in self.ends) != (sequence in self.aborted)
        placement = self.scheduler.placement
        assert placement.pool.num_live == 0
        assert self.scheduler.slot_table.num_free == 6
        assert len(self.scheduler.waiting) == 0
        placement.take_next_plan()
        assert sorted(placement.swap_space.free_blocks) == list(range(9))
        self.check()
