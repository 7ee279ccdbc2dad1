"""Scheduler and cache under random operations, against a device that checks every block."""

from __future__ import annotations

import logging
from collections import deque

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from octavo.cache.groups import make_layout
from octavo.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from octavo.engine.messages import EngineRequest, StepOutputs, TokenSampling
from octavo.execution.state_layout import StateLayout
from octavo.scheduling.results import StepResults
from octavo.scheduling.scheduler import Scheduler, StepRecord
from octavo_registry.cache import CacheSpec
from shadow_device import ShadowDevice, ShadowStep, expected_tokens

VOCAB = 37
POISON = VOCAB
MAX_LEN = 48
FULL = CacheSpec.full(kv_heads=1, head_dim=8, dtype="float32")
WINDOW = CacheSpec.sliding(kv_heads=1, head_dim=8, dtype="float32", window=7)
LAST = CacheSpec.sliding(kv_heads=1, head_dim=8, dtype="float32", window=1)
SPECS = {
    "full": {"a": FULL, "b": FULL},
    "window": {"a": WINDOW},
    "mixed": {"a": FULL, "b": WINDOW, "c": WINDOW, "d": WINDOW},
    "last": {"a": FULL, "b": LAST},
}


class World:
    """A scheduler on a shadow device, with what each request must give."""

    def __init__(self, kind: str, mode: str, policy: str, num_blocks: int, depth: int) -> None:
        layout = make_layout(SPECS[kind], lambda spec: 64, block_tokens=4)
        config = EngineConfig(
            model=ModelConfig(model="none"),
            cache=CacheConfig(block_size=4),
            scheduler=SchedulerConfig(
                max_num_seqs=6,
                max_num_batched_tokens=11,
                preemption_mode=mode,
                scheduling_policy=policy,
                async_depth=depth,
            ),
        )
        state = StateLayout(
            num_slots=6,
            max_model_len=MAX_LEN,
            max_blocks=MAX_LEN // 4,
            num_groups=len(layout.groups),
        )
        num_blocks *= len(layout.groups)
        self.scheduler = Scheduler(
            config, layout, state, num_blocks=num_blocks, num_swap_blocks=9, model_identity="m"
        )
        self.results = StepResults(self.scheduler, enable_prefix_caching=True)
        self.device = ShadowDevice(layout, state, num_blocks, 9, VOCAB)
        self.device.raise_for = POISON
        self.under_way: deque[tuple[StepRecord, ShadowStep]] = deque()
        self.depth = depth
        self.next_id = 0
        self.expected: dict[int, list[int]] = {}
        self.poisoned: set[int] = set()
        self.got: dict[int, list[int]] = {}
        self.ends: dict[int, str] = {}
        self.aborted: set[int] = set()

    def add(self, prompt, n, max_tokens, seed, priority, salt, stop) -> None:
        max_tokens = min(max_tokens, MAX_LEN - len(prompt))
        ids = tuple(range(self.next_id, self.next_id + n))
        self.next_id += n
        sampling = TokenSampling(seed=seed, max_tokens=max_tokens, stop_token_ids=stop)
        self.scheduler.add(
            EngineRequest(
                request_id=str(ids[0]),
                sequences=ids,
                prompt_token_ids=prompt,
                sampling=sampling,
                priority=priority,
                cache_salt=salt,
            )
        )
        for index, sequence in enumerate(ids):
            self.expected[sequence] = expected_tokens(prompt, seed + index, VOCAB, max_tokens, stop)
            self.got[sequence] = []
        if POISON in prompt:
            self.poisoned.update(ids)

    def step(self) -> None:
        planned = self.scheduler.schedule()
        if planned is not None:
            plan, record = planned
            self.under_way.append((record, self.device.submit(plan)))
        if self.under_way and (planned is None or len(self.under_way) >= self.depth):
            self.collect()

    def collect(self) -> None:
        record, pending = self.under_way.popleft()
        try:
            result = pending.result()
        except RuntimeError as error:
            if not record.void:
                self.device.broken = False  # all that built on it is void now
            later = [r for r, _ in self.under_way]
            self.take(self.results.fail(record, later, error))
        else:
            self.take(self.results.apply(record, result))

    def take(self, outputs: StepOutputs) -> None:
        for sequence, token in zip(outputs.sequences, outputs.tokens, strict=True):
            assert sequence not in self.ends, "a token after the end"
            assert sequence not in self.aborted, "a token after the abort"
            self.got[sequence].append(token)
        for end in outputs.ends:
            assert end.sequence not in self.ends, "a sequence ended twice"
            self.ends[end.sequence] = end.reason
            if end.sequence in self.poisoned:
                assert end.reason == "error"
            else:
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
            self.scheduler.requeue(self.scheduler.rows.at(int(order[pick % len(order)])))

    def check(self) -> None:
        tables = self.scheduler.placement.tables
        pool = tables.pool
        refs = np.zeros(pool.num_blocks, np.int32)
        for slot, sequence in enumerate(self.scheduler.rows.sequences):
            for blocks in tables.held(slot):
                assert sequence is not None or len(blocks) == 0
                np.add.at(refs, blocks, 1)
        assert (refs == pool.refs).all()
        assert refs[0] == 0
        assert int((refs > 0).sum()) == pool.num_live
        for sequence, got in self.got.items():
            assert got == self.expected[sequence][: len(got)] or sequence in self.poisoned

    def drain(self) -> None:
        for _ in range(2_000):
            if not self.scheduler.has_work:
                break
            self.step()
        assert not self.scheduler.has_work, "work is left over that never runs"
        for sequence in self.expected:
            assert (sequence in self.ends) != (sequence in self.aborted)
        placement = self.scheduler.placement
        assert placement.pool.num_live == 0
        assert self.scheduler.rows.num_free == 6
        assert len(self.scheduler.waiting) == 0
        placement.take_draft()
        assert sorted(placement._free_swap_blocks) == list(range(9))
        self.check()


# Few distinct beginnings, so that prefixes meet.
prompts = st.builds(
    lambda head, length, tail: (head * 12)[:length] + tail,
    st.sampled_from([[1, 2, 3, 4, 5], [1, 2, 3, 9], [7]]),
    st.integers(1, 30),
    st.lists(st.integers(0, VOCAB - 1), max_size=3),
)


class SchedulingMachine(RuleBasedStateMachine):
    @rule(
        prompt=prompts,
        n=st.sampled_from([1, 1, 1, 2, 4]),
        max_tokens=st.integers(1, 18),
        seed=st.integers(0, 3),
        priority=st.integers(0, 2),
        salt=st.sampled_from(["", "", "s"]),
        stop=st.sampled_from([(), (), (3, 5, 8, 13)]),
        poison=st.sampled_from([False] * 15 + [True]),
    )
    def add(self, prompt, n, max_tokens, seed, priority, salt, stop, poison):
        if len(self.world.live()) < 12:
            self.world.add(
                [*prompt, POISON] if poison else prompt, n, max_tokens, seed, priority, salt, stop
            )

    @rule(count=st.integers(1, 6))
    def step(self, count):
        for _ in range(count):
            self.world.step()

    @rule(pick=st.integers(0, 100))
    def abort(self, pick):
        live = self.world.live()
        if live:
            self.world.abort(live[pick % len(live)])

    @rule(pick=st.integers(0, 100))
    def preempt(self, pick):
        self.world.preempt(pick)

    @rule()
    def forget_prefixes(self):
        self.world.scheduler.placement.pool.forget_all()

    @invariant()
    def references_add_up(self):
        self.world.check()

    def teardown(self):
        self.world.drain()


def machine(kind: str, mode: str, policy: str, num_blocks: int, depth: int):
    class Configured(SchedulingMachine):
        def __init__(self) -> None:
            super().__init__()
            self.world = World(kind, mode, policy, num_blocks, depth)

    return Configured


CASES = [
    ("full", "recompute", "fcfs", 15, 2),
    ("full", "swap", "priority", 15, 2),
    ("window", "swap", "fcfs", 18, 2),
    ("mixed", "recompute", "priority", 15, 1),
    ("mixed", "swap", "fcfs", 15, 3),
    ("last", "swap", "priority", 15, 2),
]


@pytest.fixture(autouse=True)
def quiet():
    logging.getLogger("octavo").setLevel(logging.ERROR)
    yield
    logging.getLogger("octavo").setLevel(logging.NOTSET)


@pytest.mark.parametrize(
    "num_examples", [20, pytest.param(500, marks=pytest.mark.slow)], ids=["quick", "20000 steps"]
)
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_any_order_of_operations_keeps_the_references_and_the_tokens(case, num_examples):
    """Six configurations of 20,000 steps: over 100,000 operations in the whole suite."""
    run_state_machine_as_test(
        machine(*case),
        settings=settings(
            max_examples=num_examples,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_a_long_prompt_swapped_out_after_one_chunk_comes_back_to_the_smallest_pool():
    world = World("mixed", "swap", "fcfs", num_blocks=10, depth=1)
    world.add([7] * (MAX_LEN - 1), 1, 1, 0, 0, "", ())
    world.step()
    world.preempt(0)
    assert world.scheduler.placement.num_swaps == 1
    world.drain()
