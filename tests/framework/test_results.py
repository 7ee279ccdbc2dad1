"""What the result of a step means for its rows."""

from __future__ import annotations

import pytest

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
