"""What the result of a step means for its rows."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.scheduling.slots import Yields
from stepwise import TOKEN, Steps


def test_a_token_of_each_row_that_draws_is_told() -> None:
    steps = Steps(max_num_batched_tokens=6)
    steps.add("a", 2)
    steps.add("b", 8)
    rows, record = steps.plan()
    assert rows == {"a": 2, "b": 4}
    outputs = steps.end(record)
    assert (steps.named(outputs.sequences), outputs.tokens) == (["a"], [TOKEN])
    assert [prompt.sequence for prompt in outputs.prompts] == [0]


@pytest.mark.parametrize(("kind", "told"), [("stop_token_ids", 9), ("eos_token_ids", None)])
def test_a_row_ends_at_a_token_that_stops_it(kind: str, told: int | None) -> None:
    steps = Steps()
    steps.add("a", 3, **{kind: (9,)})
    steps.step()
    _, record = steps.plan()
    (end,) = steps.end(record, token=9).ends
    assert (end.reason, end.stop_token_id) == ("stop", told)
    assert not steps.scheduler.has_work


def test_what_a_row_has_drawn_that_ended_meanwhile_is_told_to_nobody() -> None:
    steps = Steps(async_depth=2)
    steps.add("a", 3, stop_token_ids=(9,))
    _, first = steps.plan()
    _, second = steps.plan()
    assert [end.reason for end in steps.end(first, token=9).ends] == ["stop"]
    outputs = steps.end(second)
    assert (outputs.sequences, outputs.tokens, outputs.ends) == ([], [], [])


def test_of_a_burst_counts_what_comes_before_an_end() -> None:
    steps = Steps(yields=Yields(0, 4))
    steps.add("goes on", 3)
    steps.add("stops", 3, stop_token_ids=(9,))
    steps.add("is full", 3, max_tokens=3)
    steps.add("waits", 3)
    _, record = steps.plan()
    outputs = steps.end_with(record, [1, 2], [1, 9, 3, 9], [1, 2, 3, 4], [])
    assert steps.named(outputs.sequences) == ["goes on", "stops", "is full"]
    assert (outputs.counts, outputs.tokens) == ([2, 2, 3], [1, 2, 1, 9, 1, 2, 3])
    assert [(end.reason, end.stop_token_id) for end in outputs.ends] == [
        ("stop", 9),
        ("length", None),
    ]
    assert [report.sequence for report in outputs.prompts] == [0, 1, 2]
    rows, record = steps.plan()
    assert rows == {"goes on": 1, "waits": 1}
    outputs = steps.end_with(record, [3], [1, 2, 3])
    assert (outputs.counts, outputs.tokens) == ([1, 3], [3, 1, 2, 3])


def test_a_row_fails_at_the_token_of_a_burst_that_its_logits_do_not_give() -> None:
    steps = Steps(yields=Yields(1, 3))
    for name in "abc":
        steps.add(name, 3)
    _, record = steps.plan()
    unusable_RK = np.array([[0, 2, 2], [1, 0, 0], [0, 0, 0]], np.int32)
    outputs = steps.end_with(record, [1, 2, 3], [4, 5, 6], [7, 8, 9], unusable_RK=unusable_RK)
    assert steps.named(outputs.sequences) == ["a", "c"]
    assert (outputs.counts, outputs.tokens) == ([1, 3], [1, 7, 8, 9])
    assert [(end.sequence, end.reason, end.error) for end in outputs.ends] == [
        (1, "error", "RuntimeError: 1"),
        (0, "error", "RuntimeError: 2"),
    ]


def test_a_preemption_is_told_once() -> None:
    steps = Steps(num_blocks=5)
    steps.add("old", 7)
    steps.add("new", 7)
    told = []
    while steps.scheduler.has_work:
        _, record = steps.plan()
        told.append(steps.named(steps.end(record).preempted))
    assert [names for names in told if names] == [["new"]]


def test_of_a_step_that_raised_the_one_row_that_raises_alone_fails() -> None:
    steps = Steps()
    for name in "abc":
        steps.add(name, 3, max_tokens=2)
    _, record = steps.plan()
    outputs = steps.results.fail(record, [], ValueError("a row of these"))
    assert (outputs.ends, steps.named(outputs.preempted)) == ([], ["a", "b", "c"])
    failed = []
    while steps.scheduler.has_work:
        rows, record = steps.plan()
        if "b" in rows:
            assert list(rows) == ["b"]
            failed += steps.results.fail(record, [], ValueError("this one")).ends
        else:
            steps.end(record)
    assert [(end.sequence, end.reason) for end in failed] == [(1, "error")]
