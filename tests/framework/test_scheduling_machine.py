"""Scheduler and cache under random operations, against a device that checks every block."""

from __future__ import annotations

import logging
from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from octavo.engine.messages import TokenSampling
from scheduling_cases import ADAPTERS, FACTS, LATE_FACTS, MAX_LEN, POISON, VOCAB, Case
from scheduling_world import World
from shadow_device import RemainderGuide

# Few distinct beginnings, so that prefixes meet.
prompts = st.builds(
    lambda head, length, tail: (head * 12)[:length] + tail,
    st.sampled_from([[1, 2, 3, 4, 5], [1, 2, 3, 9], [7]]),
    st.integers(1, 30),
    st.lists(st.integers(0, VOCAB - 1), max_size=3),
)


details = st.sampled_from(
    [
        {},
        {},
        {"stop_token_ids": (3, 5, 8, 13)},
        {"stop_token_ids": (3, 5, 8, 13), "min_tokens": 5},
        {"stop_token_ids": tuple(range(0, VOCAB, 2)), "min_tokens": 9, "logprobs": 0},
        {"logprobs": 2, "logit_bias": {4: 1.0}},
        {"prompt_logprobs": 1},
        {"logit_bias": {4: 2.0, 5: 0.5}},
    ]
)


guides = st.builds(RemainderGuide, st.integers(0, 2), st.integers(1, 20), vocab_size=st.just(VOCAB))


class SchedulingMachine(RuleBasedStateMachine):
    @rule(
        prompt=prompts,
        n=st.sampled_from([1, 1, 1, 2, 4]),
        max_tokens=st.integers(1, 18),
        seed=st.integers(0, 3),
        priority=st.integers(0, 2),
        salt=st.sampled_from(["", "", "s"]),
        detail=details,
        poison=st.sampled_from([False] * 15 + [True]),
        guide=guides,
        guided_by=st.sampled_from([None] * 8 + ["host", "host", "device", "device", "device"]),
        adapter=st.sampled_from(["", "", *ADAPTERS]),
    )
    def add(
        self, prompt, n, max_tokens, seed, priority, salt, detail, poison, guide, guided_by, adapter
    ):
        if len(self.world.live()) < 12:
            guide = None if guided_by is None else guide
            prompt = [*prompt, POISON] if poison else prompt
            max_tokens = min(max_tokens, MAX_LEN - len(prompt))
            if guide is not None:
                detail = {k: v for k, v in detail.items() if k != "min_tokens"}
            sampling = TokenSampling(seed=seed, max_tokens=max_tokens, **detail)
            is_machine = guided_by == "device"
            self.world.add(prompt, n, sampling, priority, salt, guide, adapter, is_machine)

    @rule(count=st.sampled_from([1, 2, 4, 8, 16]))
    def step(self, count):
        for _ in range(count):
            self.world.step()

    @rule(adapter=st.sampled_from([*ADAPTERS]))
    def load_or_unload(self, adapter):
        self.world.hold(adapter)

    @rule(count=st.integers(1, 9))
    def let_masks_be_late(self, count):
        self.world.filler.num_late = count

    @rule(pick=st.integers(0, 100))
    def abort(self, pick):
        live = self.world.live()
        if live:
            self.world.abort(live[pick % len(live)])

    @rule(pick=st.integers(0, 100))
    def preempt(self, pick):
        self.world.preempt(pick)

    @rule(count=st.integers(0, 12), at_once=st.booleans())
    def fail(self, count, at_once):
        self.world.device.steps_to_fault = count
        self.world.device.fails_at_once = at_once

    @rule()
    def forget_prefixes(self):
        self.world.scheduler.placement.pool.forget_all()

    @invariant()
    def references_add_up(self):
        self.world.check()

    def teardown(self):
        self.world.drain()


def machine(case: Case, seen: Counter[str]):
    class Configured(SchedulingMachine):
        def __init__(self) -> None:
            super().__init__()
            self.world = World(case, seen)

    return Configured


CASES = [
    Case("full", "recompute", "fcfs", 2, num_blocks=30),
    Case("full", "swap", "priority", 2, has_processors=True),
    Case("full", "recompute", "fcfs", 2, block_tokens=1, num_blocks=150),
    Case("window", "swap", "fcfs", 2, num_blocks=18),
    Case("mixed", "recompute", "priority", 1),
    Case("mixed", "swap", "fcfs", 3),
    Case("last", "swap", "priority", 2),
    Case("cross", "swap", "priority", 3, num_blocks=12),
]


@pytest.fixture(autouse=True)
def quiet():
    logging.getLogger("octavo").setLevel(logging.ERROR)
    yield
    logging.getLogger("octavo").setLevel(logging.NOTSET)


@pytest.mark.parametrize(
    "num_examples", [20, pytest.param(200, marks=pytest.mark.slow)], ids=["quick", "8000 steps"]
)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_any_order_of_operations_keeps_the_references_and_the_tokens(case, num_examples):
    """Eight configurations of 8,000 steps, in which all that can happen does."""
    seen = Counter()
    run_state_machine_as_test(
        machine(case, seen),
        settings=settings(
            max_examples=num_examples,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate],  # shrinking takes minutes; the seed is fixed anyway
        ),
    )
    facts = FACTS if case.depth == 1 else FACTS + LATE_FACTS
    if case.has_processors:  # they may change any draw, so that none is left out
        facts = [fact for fact in facts if fact != "appended"]
    if num_examples >= 200:
        assert [fact for fact in facts if not seen[fact]] == []


def test_rows_go_on_steadily_while_others_wait_for_a_slot():
    world = World(Case("full", "recompute", "fcfs", 2, num_blocks=60), Counter())
    for seed in range(8):
        world.add([1, 2, seed], 1, TokenSampling(seed=seed, max_tokens=15))
    for _ in range(15):
        world.step()
    assert world.seen["a queue"] > 5
    world.drain()


def test_a_newcomer_is_in_the_step_after_a_steady_one():
    world = World(Case("full", "recompute", "fcfs", 2), Counter())
    world.add([1, 2, 3], 1, TokenSampling(seed=0, max_tokens=40))
    for _ in range(5):
        world.step()
    assert world.seen["steps"] > 0
    world.add([4, 5], 1, TokenSampling(seed=0, max_tokens=1))
    world.step()
    assert world.last_plan.num_rows == 2


def test_a_long_prompt_swapped_out_after_one_chunk_comes_back_to_the_smallest_pool():
    world = World(Case("mixed", "swap", "fcfs", 1, num_blocks=10), Counter())
    world.add([7] * (MAX_LEN - 1), 1, TokenSampling(seed=0, max_tokens=1))
    world.step()
    world.preempt(0)
    assert world.scheduler.placement.num_swaps == 1
    world.drain()


def test_an_adapter_is_copied_while_its_request_waits_for_a_slot_and_once():
    """The seventh takes the slot of the first; then the eighth, which has an adapter, is next."""
    world = World(Case("full", "recompute", "fcfs", 2, num_blocks=60), Counter())
    for seed in range(8):
        sampling = TokenSampling(seed=seed, max_tokens=15 if seed else 3)
        world.add([1], 1, sampling, adapter="a" if seed == 7 else "")
    while not any(world.device.rank_rows):
        world.step()
    assert len(world.scheduler.waiting) == 1
    world.drain()
    assert world.seen["steps"] > 5
    assert world.scheduler.adapters.num_loads == 1


def test_a_copy_on_the_host_is_not_used_again_after_a_step_that_raised() -> None:
    world = World(Case("full", "swap", "fcfs", 1), Counter())
    world.add([7] * 30, 1, TokenSampling(seed=0, max_tokens=2, prompt_logprobs=1))
    for _ in range(2):
        world.step()
    (sequence,) = world.scheduler.sequences.values()
    world.preempt(0)
    assert sequence.swapped is not None
    assert 0 < len(sequence.prompt_logprobs) < 29
    world.device.swap[:] = -3
    world.scheduler.start_over()
    world.drain()


def test_a_row_that_entered_without_tokens_enters_again_after_a_step_that_raised() -> None:
    world = World(Case("full", "recompute", "fcfs", 2), Counter())
    world.device.steps_to_fault = 0
    for seed in range(2):
        world.add([1, 2, 3], 1, TokenSampling(seed=seed, max_tokens=5))
        if not seed:
            world.step()
    sequence = world.scheduler.waiting.peek()
    world.scheduler.placement.place(sequence, 5, lambda *_: 0)  # its media come later, say
    world.scheduler.waiting.remove(sequence)
    world.collect()
    world.drain()
    assert list(world.ends.values()) == ["error", "length"]


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_a_preempted_row_goes_on_from_its_place_in_its_machine(mode) -> None:
    for num_steps in range(2, 11):
        world = World(Case("full", mode, "fcfs", 2, num_blocks=30), Counter())
        for seed in range(2):
            sampling = TokenSampling(seed=seed, max_tokens=20)
            guide = RemainderGuide(seed, 9 - seed, vocab_size=VOCAB)
            world.add([1, 2], 1, sampling, guide=guide, is_machine=True)
        for _ in range(num_steps):
            world.step()
        for _ in range(2):  # so that each takes the other's slot
            world.preempt(0)
        world.drain()


def test_a_machine_is_copied_once_before_steady_steps() -> None:
    world = World(Case("full", "recompute", "fcfs", 2, num_blocks=30), Counter())
    guide = RemainderGuide(1, 20, vocab_size=VOCAB)
    world.add([1], 1, TokenSampling(seed=0, max_tokens=20), guide=guide, is_machine=True)
    world.drain()
    assert world.seen["machines"] > 10
    assert world.scheduler.machines.num_loads == 1
