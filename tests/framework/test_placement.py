"""Slots and blocks: who gives them back when there are too few, and what comes of it."""

from __future__ import annotations

import pytest

from stepwise import Steps


def full(**options) -> Steps:
    """Two rows of two blocks each in a pool that has no more; both need a third next."""
    steps = Steps(num_blocks=5, **options)  # one is never given out
    steps.add("old", 7, max_tokens=9)
    steps.add("new", 7, max_tokens=9)
    assert steps.step() == {"old": 7, "new": 7}
    assert steps.step() == {"old": 1, "new": 1}
    return steps


def test_the_newest_is_preempted() -> None:
    steps = full()
    assert steps.step() == {"old": 1}
    assert steps.preempted == []  # told with the outputs of that step
    assert steps.scheduler.placement.num_preemptions == 1


def test_the_last_in_the_order_of_priorities_is_preempted() -> None:
    steps = Steps(num_blocks=5, scheduling_policy="priority")
    steps.add("old", 7, max_tokens=9, priority=1)
    steps.add("new", 7, max_tokens=9, priority=0)
    assert steps.step() == {"new": 7, "old": 7}
    assert set(steps.step()) == {"new", "old"}
    assert steps.step() == {"new": 1}


def test_one_that_was_preempted_computes_its_tokens_again_and_ends_alike() -> None:
    steps = full()
    rows = [steps.step() for _ in range(20)]
    again = next(row["new"] for row in rows if "new" in row)
    assert 1 <= again <= 7 + 2  # all that is known of it, less what was found in the cache
    assert not steps.scheduler.has_work


def test_one_that_was_swapped_goes_on_where_it_was() -> None:
    steps = full(swap=8, preemption_mode="swap")
    assert steps.step() == {"old": 1}
    assert steps.scheduler.placement.num_swaps == 1
    rows = [steps.step() for _ in range(20)]
    assert next(row["new"] for row in rows if "new" in row) == 1
    assert not steps.scheduler.has_work


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_all_blocks_are_free_in_the_end(mode: str) -> None:
    steps = full(swap=8, preemption_mode=mode)
    while steps.scheduler.has_work:
        assert steps.step()
    assert steps.scheduler.placement.pool.num_available == 4
