"""Scheduler and cache under random operations, against a device that checks every block."""

from __future__ import annotations

from collections import Counter

import pytest

from octavo.messages import TokenSampling
from scheduling_cases import (
    FACTS,
    LATE_FACTS,
    MAX_LEN,
    STATE_FACTS,
    STORE_FACTS,
    VOCAB,
    Case,
)
from scheduling_walks import walk
from scheduling_world import World
from shadow_device import RemainderGuide

pytestmark = pytest.mark.usefixtures("quiet")

CASES = [
    Case("full", "recompute", "fcfs", 2, num_blocks=30, most_of_prompt=5),
    Case("full", "swap", "priority", 2, has_processors=True),
    Case("full", "recompute", "fcfs", 2, block_tokens=1, num_blocks=150),
    Case("window", "swap", "fcfs", 2, num_blocks=18),
    Case("mixed", "recompute", "priority", 1),
    Case("mixed", "swap", "fcfs", 3, most_of_prompt=3),
    Case("last", "swap", "priority", 2),
    Case("cross", "swap", "priority", 3, num_blocks=12),
    Case("full", "recompute", "fcfs", 2, num_blocks=40, has_store=True),
    Case("mixed", "swap", "priority", 3, num_blocks=20, has_store=True),
    Case("media", "recompute", "fcfs", 2, num_blocks=12),
    Case("state", "recompute", "fcfs", 2),
    Case("state", "swap", "priority", 3, num_logged=4, most_of_prompt=3),
    Case("states", "swap", "fcfs", 2, has_processors=True),
    Case("all", "swap", "fcfs", 2, num_blocks=12),
]


@pytest.mark.parametrize(
    "num_walks", [20, pytest.param(200, marks=pytest.mark.slow)], ids=["quick", "8000 steps"]
)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_any_order_of_operations_keeps_the_references_and_the_tokens(case, num_walks):
    """Configurations of 8,000 operations, in which all that can happen does."""
    seen = Counter()
    for number in range(num_walks):
        walk(case, number, seen)
    facts = FACTS if case.depth == 1 else FACTS + LATE_FACTS
    if case.has_processors:  # they may change any draw, so that none is left out
        facts = [fact for fact in facts if fact != "appended"]
    if case.has_store:
        # Few wait long enough for a store to leave meanwhile where others are swapped.
        rare = {"came for nobody"} if case.mode == "swap" else set()
        facts = [*facts, *(fact for fact in STORE_FACTS if fact not in rare)]
    if "state" in case.kind or case.kind == "all":
        facts = [*facts, *STATE_FACTS]
    if case.kind == "states":  # no row needs a block
        facts = [fact for fact in facts if fact != "new blocks"]
    if case.kind not in ("cross", "media", "all"):
        facts = [*facts, "positions"]
    if num_walks >= 200:
        assert [fact for fact in facts if seen[fact] < 10] == []


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
    assert world.scheduler.adapters.pool.num_loads == 1


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
def test_a_preempted_row_goes_on_from_its_place_in_its_automaton(mode) -> None:
    for num_steps in range(2, 11):
        world = World(Case("full", mode, "fcfs", 2, num_blocks=30), Counter())
        for seed in range(2):
            sampling = TokenSampling(seed=seed, max_tokens=20)
            guide = RemainderGuide(seed, 9 - seed, vocab_size=VOCAB)
            world.add([1, 2], 1, sampling, guide=guide, is_automaton=True)
        for _ in range(num_steps):
            world.step()
        for _ in range(2):  # so that each takes the other's slot
            world.preempt(0)
        world.drain()


def test_an_automaton_is_copied_once_before_steady_steps() -> None:
    world = World(Case("full", "recompute", "fcfs", 2, num_blocks=30), Counter())
    guide = RemainderGuide(1, 20, vocab_size=VOCAB)
    world.add([1], 1, TokenSampling(seed=0, max_tokens=20), guide=guide, is_automaton=True)
    world.drain()
    assert world.seen["automata"] > 10
    assert world.scheduler.automata.num_loads == 1
