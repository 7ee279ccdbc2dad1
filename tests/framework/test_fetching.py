"""Blocks from a store: who waits for them and how long, and that mistakes there are seen."""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Iterator
from functools import partial

import pytest

import scheduling_world
from mutants import mutated
from octavo.messages import TokenSampling
from octavo.scheduling import fetching, scheduler
from scheduling_cases import Case
from scheduling_walks import walk
from scheduling_world import World
from shadow_store import Misused

PROMPT = list(range(1, 22))
CASE = Case("full", "recompute", "fcfs", 2, num_blocks=40, has_store=True)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.getLogger("octavo").setLevel(logging.ERROR)
    yield
    logging.getLogger("octavo").setLevel(logging.NOTSET)


class Calm:
    """A store's chances, where nothing fails and a copy takes its time, or none."""

    def __init__(self, polls: int = 0) -> None:
        self.polls = polls

    def random(self) -> float:
        return 1.0

    def randint(self, low: int, high: int) -> int:
        return self.polls


def stocked() -> World:
    """One whose store has a prompt's blocks, which the pool has forgotten."""
    world = World(CASE, Counter())
    world.store.rng = Calm()
    world.add(PROMPT, 1, TokenSampling(seed=0, max_tokens=2))
    world.drain()
    world.scheduler.placement.pool.forget_all()
    assert len(world.store.pages) == len(PROMPT) // CASE.block_tokens
    return world


def cached_tokens(world: World) -> int:
    return world.scheduler.placement.num_prefix_hit_tokens


def test_a_prefix_that_the_pool_lacks_is_brought_and_not_computed() -> None:
    world = stocked()
    world.add(PROMPT, 1, TokenSampling(seed=1, max_tokens=2))
    world.step()
    assert world.scheduler.slot_table.num_free == 6, "it has a slot while its blocks come"
    assert world.scheduler.placement.pool.num_live == 5
    world.drain()
    assert cached_tokens(world) == 20
    assert world.scheduler.fetching.num_fetched_blocks == 5


def test_others_run_while_a_prefix_is_brought() -> None:
    world = stocked()
    world.add(PROMPT, 1, TokenSampling(seed=1, max_tokens=2))
    world.add([30, 31], 1, TokenSampling(seed=1, max_tokens=2))
    world.step()
    assert [s.id for s in world.scheduler.slot_table.sequences if s is not None] == [2]
    world.drain()


def test_a_store_that_fails_or_knows_nothing_leaves_all_to_be_computed() -> None:
    world = stocked()
    failing = Calm()
    failing.random = lambda: 0.0
    world.store.rng = failing
    world.add(PROMPT, 1, TokenSampling(seed=1, max_tokens=2))
    world.drain()
    assert cached_tokens(world) == 0
    assert world.scheduler.fetching.num_failures > 0


@pytest.mark.parametrize("method", ["load", "store"])
def test_what_a_ticket_cannot_tell_of_its_copy_is_not_used(method: str) -> None:
    world = stocked() if method == "load" else World(CASE, Counter())
    world.store.rng = Calm()
    inner, kept = getattr(world.store, method), len(world.store.pages)

    def raising(*args: object) -> object:
        ticket, given = inner(*args), ["no answer"]
        ends_within = ticket.ends_within

        def once(seconds: float) -> bool:
            assert ends_within(seconds)
            if given:
                raise RuntimeError(given.pop())
            return True

        ticket.ends_within = once
        return ticket

    setattr(world.store, method, raising)
    world.add(PROMPT, 1, TokenSampling(seed=1, max_tokens=2))
    world.drain()
    fetching = world.scheduler.fetching
    assert fetching.num_failures > 0
    assert fetching.num_fetched_blocks == 0
    assert len(world.store.pages) == kept


def test_a_store_is_asked_once_while_a_sequence_waits_and_again_after_a_preemption() -> None:
    world, calls = stocked(), []
    lookup = world.store.lookup
    world.store.lookup = lambda digests: calls.append(len(digests)) or lookup(digests)
    for seed in range(7):  # one more than there are slots
        world.add([25, 26, 27, 28, 29, seed], 1, TokenSampling(seed=seed, max_tokens=9))
    for _ in range(5):
        world.step()
    assert calls == [1] * 6
    world.preempt(5)
    world.drain()
    assert len(calls) == 8


def test_blocks_that_were_on_their_way_when_a_step_raised_are_not_used() -> None:
    world = stocked()
    world.add(PROMPT, 1, TokenSampling(seed=1, max_tokens=2))
    world.step()
    (fetch,) = world.scheduler.fetching._fetches
    world.store.rng = Calm(polls=3)
    world.step()
    assert fetch.ticket is not None
    world.scheduler.start_over()
    world.device.pages[fetch.blocks_by_group[0]] = -3
    world.drain()
    assert world.scheduler.fetching.num_fetched_blocks == 0


def test_copies_that_were_made_while_a_step_raised_are_not_kept() -> None:
    world = World(CASE, Counter())
    world.store.rng = Calm(polls=5)
    world.add(PROMPT, 1, TokenSampling(seed=0, max_tokens=2))
    while not world.scheduler.fetching._stored:
        world.step()
    world.scheduler.start_over()
    world.drain()
    assert world.seen["not kept"] > 0


def test_blocks_stay_taken_until_they_have_come_though_nobody_waits() -> None:
    world = stocked()
    world.store.rng = Calm(polls=3)
    world.add(PROMPT, 1, TokenSampling(seed=1, max_tokens=2))
    world.step()
    world.step()
    world.abort(1)
    assert world.scheduler.placement.pool.num_live == 5
    world.drain()
    assert world.scheduler.fetching.num_fetched_blocks == 0


def test_what_the_pool_has_of_a_prefix_is_held_until_the_rest_has_come() -> None:
    world = stocked()
    world.add(PROMPT[:9], 1, TokenSampling(seed=1, max_tokens=2))
    world.drain()
    world.store.rng = Calm(polls=2)
    world.add(PROMPT, 1, TokenSampling(seed=1, max_tokens=2))
    world.step()
    world.check()
    assert world.scheduler.placement.pool.num_live == 5
    world.drain()
    assert world.scheduler.fetching.num_fetched_blocks == 5


MUTANTS = {
    "loads into blocks that steps under way still write": (
        "fetch.ticket is None and fetch.behind <= num_done",
        "fetch.ticket is None",
    ),
    "uses blocks that did not come": (
        "fetch.sequence is not None and fetch.is_right and self._succeeds(ticket)",
        "fetch.sequence is not None",
    ),
    "uses what came while a step raised": (
        "fetch.sequence is not None and fetch.is_right and self._succeeds(ticket)",
        "self._succeeds(ticket)",
    ),
    "goes on before the blocks are there": (
        "ticket is not None and self._has_ended(fetch, ticket, 0.0)",
        "ticket is not None",
    ),
    "gives back blocks that are still written": (
        "                if fetch.ticket is None:\n                    self._release(fetch)",
        "                self._release(fetch)",
    ),
    "leaves the rest of a prefix to others": (
        "            pool.share(blocks[first:length])\n",
        "",
    ),
    "takes blocks that a move still reads": (
        "            or moves.swap_out\n            or moves.swap_in\n            or moves.copy\n",
        "",
    ),
    "takes more blocks than there are": (
        "            or not placement.has_room_for(sequence)\n",
        "",
    ),
    "lets go of blocks that are still copied": (
        "            self._pool.share(held)\n",
        "            held = held[:0]\n",
    ),
    "keeps what was copied while a step raised": ("each.is_right = False", "pass"),
    "keeps copies before steps under way are over": (
        "each.behind is not None and (not each.is_right or each.behind <= num_done)",
        "each.behind is not None",
    ),
    "takes a copy for whole whose ticket cannot tell": ("fetch.is_right and ", ""),
    "keeps a copy whose ticket cannot tell": ("            copy.is_right = False\n", ""),
    "forgets that somebody waits": ("ended.append(fetch.sequence)", "pass"),
}
SCHEDULER_MUTANTS = {
    "ends who waits for blocks as if queued": (
        "self.fetching is None or not self.fetching.abandon(sequence)",
        "True",
    ),
    "runs suspects while blocks are on their way": (
        "self.num_under_way or (self.fetching is not None and self.fetching.is_busy)",
        "self.num_under_way",
    ),
}
TRIED = (
    CASE,
    Case("mixed", "swap", "priority", 3, num_blocks=11, has_store=True),
    Case("full", "swap", "fcfs", 3, num_blocks=13, has_store=True),
)


DIRECT = {
    "takes a copy for whole whose ticket cannot tell": partial(
        test_what_a_ticket_cannot_tell_of_its_copy_is_not_used, "load"
    ),
    "keeps a copy whose ticket cannot tell": partial(
        test_what_a_ticket_cannot_tell_of_its_copy_is_not_used, "store"
    ),
    "uses what came while a step raised": (
        test_blocks_that_were_on_their_way_when_a_step_raised_are_not_used
    ),
    "keeps what was copied while a step raised": (
        test_copies_that_were_made_while_a_step_raised_are_not_kept
    ),
    "gives back blocks that are still written": (
        test_blocks_stay_taken_until_they_have_come_though_nobody_waits
    ),
    "leaves the rest of a prefix to others": (
        test_what_the_pool_has_of_a_prefix_is_held_until_the_rest_has_come
    ),
}
"""What sees a mistake that walks see late."""
NAMES = [*MUTANTS, *SCHEDULER_MUTANTS]
LATE = "takes blocks that a move still reads"
NAMES[NAMES.index(LATE)] = pytest.param(LATE, marks=pytest.mark.slow)


def walk_all() -> None:
    for number, case in itertools.product(range(40), TRIED):
        walk(case, number, Counter())


@pytest.mark.parametrize("name", NAMES)
def test_mistakes_are_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name in MUTANTS:
        made = mutated(fetching, *MUTANTS[name])
        monkeypatch.setattr(scheduler, "Fetching", made.Fetching)
    else:
        made = mutated(scheduler, *SCHEDULER_MUTANTS[name])
        monkeypatch.setattr(scheduling_world, "Scheduler", made.Scheduler)
    with pytest.raises((Misused, AssertionError, KeyError, IndexError, ValueError)):
        DIRECT.get(name, walk_all)()
