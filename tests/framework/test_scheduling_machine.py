"""Scheduler and cache under random operations, against a device that checks every block."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable

import pytest

from octavo.messages import TokenSampling
from scheduling_cases import ADAPTERS, FACTS, LATE_FACTS, MAX_LEN, POISON, VOCAB, Case
from scheduling_world import World
from shadow_device import RemainderGuide

HEADS = ([1, 2, 3, 4, 5], [1, 2, 3, 9], [7])
"""Few distinct beginnings, so that prefixes meet."""

DETAILS = (
    {},
    {},
    {"stop_token_ids": (3, 5, 8, 13)},
    {"stop_token_ids": (3, 5, 8, 13), "min_tokens": 5},
    {"stop_token_ids": tuple(range(0, VOCAB, 2)), "min_tokens": 9, "logprobs": 0},
    {"logprobs": 2, "logit_bias": {4: 1.0}},
    {"prompt_logprobs": 1},
    {"logit_bias": {4: 2.0, 5: 0.5}},
)


def add(world: World, rng: random.Random) -> None:
    if len(world.live()) >= 12:
        return
    prompt = (rng.choice(HEADS) * 30)[: rng.randint(1, 30)]
    prompt += [rng.randrange(VOCAB) for _ in range(rng.randint(0, 3))]
    prompt += [POISON] * (rng.random() < 0.06)
    detail = rng.choice(DETAILS)
    guide = None
    if guided := rng.random() < 0.4:
        guide = RemainderGuide(rng.randint(0, 2), rng.randint(1, 20), vocab_size=VOCAB)
        detail = {k: v for k, v in detail.items() if k != "min_tokens"}
    max_tokens = min(rng.randint(1, 18), MAX_LEN - len(prompt))
    world.add(
        prompt,
        n=rng.choice([1, 1, 1, 2, 4]),
        sampling=TokenSampling(seed=rng.randint(0, 3), max_tokens=max_tokens, **detail),
        priority=rng.randint(0, 2),
        salt=rng.choice(["", "", "s"]),
        guide=guide,
        adapter=rng.choice(["", "", *ADAPTERS]),
        is_machine=guided and rng.random() < 0.6,
    )


def step(world: World, rng: random.Random) -> None:
    for _ in range(rng.choice([1, 2, 4, 8, 16])):
        world.step()


def load_or_unload(world: World, rng: random.Random) -> None:
    world.hold(rng.choice([*ADAPTERS]))


def let_masks_be_late(world: World, rng: random.Random) -> None:
    world.filler.num_late = rng.randint(1, 9)


def abort(world: World, rng: random.Random) -> None:
    if live := world.live():
        world.abort(rng.choice(live))


def preempt(world: World, rng: random.Random) -> None:
    world.preempt(rng.randint(0, 100))


def fail(world: World, rng: random.Random) -> None:
    world.device.steps_to_fault = rng.randint(0, 12)
    world.device.fails_at_once = rng.random() < 0.5


def forget_prefixes(world: World, rng: random.Random) -> None:
    world.scheduler.placement.pool.forget_all()


DISTURBANCES: tuple[Callable[[World, random.Random], None], ...] = (
    load_or_unload,
    let_masks_be_late,
    abort,
    preempt,
    fail,
    forget_prefixes,
)


def walk(case: Case, number: int, seen: Counter[str]) -> None:
    """Forty operations; of the disturbances some, so that what one hides is met too."""
    world, rng = World(case, seen), random.Random(f"{case} {number}")
    operations = [add, step] * rng.randint(1, 2)
    operations += rng.sample(DISTURBANCES, rng.randint(0, len(DISTURBANCES)))
    try:
        for _ in range(40):
            rng.choice(operations)(world, rng)
            world.check()
        world.drain()
    except Exception as error:
        error.add_note(f"in walk {number}")
        raise


CASES = [
    Case("full", "recompute", "fcfs", 2, num_blocks=30, most_of_prompt=5),
    Case("full", "swap", "priority", 2, has_processors=True),
    Case("full", "recompute", "fcfs", 2, block_tokens=1, num_blocks=150),
    Case("window", "swap", "fcfs", 2, num_blocks=18),
    Case("mixed", "recompute", "priority", 1),
    Case("mixed", "swap", "fcfs", 3, most_of_prompt=3),
    Case("last", "swap", "priority", 2),
    Case("cross", "swap", "priority", 3, num_blocks=12),
]


@pytest.fixture(autouse=True)
def quiet():
    logging.getLogger("octavo").setLevel(logging.ERROR)
    yield
    logging.getLogger("octavo").setLevel(logging.NOTSET)


@pytest.mark.parametrize(
    "num_walks", [20, pytest.param(200, marks=pytest.mark.slow)], ids=["quick", "8000 steps"]
)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_any_order_of_operations_keeps_the_references_and_the_tokens(case, num_walks):
    """Eight configurations of 8,000 operations, in which all that can happen does."""
    seen = Counter()
    for number in range(num_walks):
        walk(case, number, seen)
    facts = FACTS if case.depth == 1 else FACTS + LATE_FACTS
    if case.has_processors:  # they may change any draw, so that none is left out
        facts = [fact for fact in facts if fact != "appended"]
    if case.kind != "cross":
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
