"""Random operations on a scheduler, in any order."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence

from octavo.messages import TokenSampling
from scheduling_cases import ADAPTERS, MAX_LEN, POISON, VOCAB, Case
from scheduling_world import World
from shadow_device import RemainderGuide

Operation = Callable[[World, random.Random], None]

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
        is_automaton=guided and rng.random() < 0.6,
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


DISTURBANCES: tuple[Operation, ...] = (
    load_or_unload,
    let_masks_be_late,
    abort,
    preempt,
    fail,
    forget_prefixes,
)


def chosen_operations(case: Case, rng: random.Random) -> list[Operation]:
    """Of the disturbances some, so that what one hides is met too."""
    operations: list[Operation] = [add, step] * rng.randint(1, 2)
    if case.has_store:
        operations.append(forget_prefixes)
    return operations + rng.sample(DISTURBANCES, rng.randint(0, len(DISTURBANCES)))


def walk(
    case: Case,
    number: int,
    seen: Counter[str],
    choose: Callable[[Case, random.Random], Sequence[Operation]] = chosen_operations,
) -> None:
    """Forty operations."""
    name = f"{case} {number}"
    world, rng = World(case, seen, name), random.Random(name)
    operations = choose(case, rng)
    try:
        for _ in range(40):
            rng.choice(operations)(world, rng)
            world.check()
        world.drain()
        hits = world.scheduler.placement.num_prefix_hit_tokens
        seen["from a checkpoint"] += hits if world.scheduler.placement.lines else 0
    except Exception as error:
        error.add_note(f"in walk {number}")
        raise
