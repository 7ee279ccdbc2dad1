"""Who enters a step, and who has to wait for the next."""

from __future__ import annotations

from stepwise import Steps


def test_nobody_enters_a_step_that_preempted() -> None:
    steps = Steps(num_blocks=8, scheduling_policy="priority")  # one block is never given out
    steps.add("old", 11, max_tokens=8)
    steps.add("new", 11, max_tokens=8, priority=1)
    assert steps.step() == {"old": 11, "new": 11}
    assert steps.step() == {"old": 1, "new": 1}
    steps.add("tiny", 1, max_tokens=1)  # there is room for it once the last row has left
    assert steps.step() == {"old": 1}
    assert steps.step() == {"old": 1, "tiny": 1}


def test_who_comes_first_enters_first_and_nobody_passes_one_that_does_not_fit() -> None:
    steps = Steps(num_blocks=6)
    steps.add("a", 12, max_tokens=2)
    steps.add("large", 12, max_tokens=2)
    steps.add("small", 2, max_tokens=2)
    assert steps.step() == {"a": 12}
    assert steps.step() == {"a": 1}
    assert set(steps.step()) == {"large", "small"}


def test_higher_priorities_enter_first() -> None:
    steps = Steps(slots=1, scheduling_policy="priority")
    for name, priority in {"late": 5, "soon": 1, "first": -1}.items():
        steps.add(name, 2, max_tokens=1, priority=priority)
    assert [list(steps.step()) for _ in range(3)] == [["first"], ["soon"], ["late"]]


def test_what_is_queued_is_no_more_than_the_limit() -> None:
    steps = Steps(slots=1, max_queued_requests=1)
    for name in "abc":
        steps.add(name, 2)
    rows, record = steps.plan()
    assert rows == {"a": 2}
    assert [(end.sequence, end.reason) for end in steps.end(record).ends] == [
        (1, "error"),
        (2, "error"),
    ]
