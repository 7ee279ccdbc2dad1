"""Who runs in a step, and with how many tokens."""

from __future__ import annotations

from stepwise import Steps


def test_decodes_come_first_and_a_chunk_gets_what_is_left() -> None:
    steps = Steps(max_num_batched_tokens=10)
    steps.add("long", 25)
    assert steps.step() == {"long": 10}
    steps.add("short", 3)
    assert steps.step() == {"long": 10}  # first come, first served: nothing is left for it
    assert steps.step() == {"long": 5, "short": 3}
    steps.add("next", 20)
    assert steps.step() == {"long": 1, "short": 1, "next": 8}
    assert steps.step() == {"long": 1, "short": 1, "next": 8}


def test_a_row_that_decodes_waits_for_no_chunk_of_a_higher_priority() -> None:
    steps = Steps(max_num_batched_tokens=10, scheduling_policy="priority")
    steps.add("low", 3, priority=1)
    assert steps.step() == {"low": 3}
    steps.add("high", 25)
    for _ in range(2):
        assert steps.step() == {"low": 1, "high": 9}


def test_a_threshold_cuts_long_prompts_so_that_others_fit_beside_them() -> None:
    steps = Steps(max_num_batched_tokens=10, long_prefill_token_threshold=6)
    steps.add("long", 20)
    steps.add("other", 9)
    assert steps.step() == {"long": 6, "other": 4}
    assert steps.step() == {"long": 6, "other": 4}


def test_a_step_is_planned_before_the_result_of_the_one_before() -> None:
    steps = Steps(async_depth=2)
    steps.add("a", 3, max_tokens=2)
    rows, first = steps.plan()
    assert rows == {"a": 3}
    rows, second = steps.plan()
    assert rows == {"a": 1}  # with a token that the host does not know yet
    assert steps.plan() == ({}, None)  # its last is being drawn
    assert steps.end(first).ends == []
    (end,) = steps.end(second).ends
    assert (end.sequence, end.reason) == (0, "length")
    assert not steps.scheduler.has_work


def test_rows_are_no_more_than_slots() -> None:
    steps = Steps(slots=2)
    for name in "abc":
        steps.add(name, 2, max_tokens=2)
    assert [steps.step() for _ in range(3)] == [{"a": 2, "b": 2}, {"a": 1, "b": 1}, {"c": 2}]


def test_a_prompt_that_has_been_computed_is_not_computed_again() -> None:
    steps = Steps()
    prompt = list(range(50, 60))
    steps.add("a", prompt, max_tokens=1)
    assert steps.step() == {"a": 10}
    steps.add("b", prompt, max_tokens=1)
    steps.add("c", [*prompt, 1, 2, 3], max_tokens=1)
    assert steps.step() == {"b": 2, "c": 5}  # two blocks of four are there


def test_one_that_is_aborted_runs_no_more_and_frees_its_blocks() -> None:
    steps = Steps(num_blocks=9)
    free = steps.scheduler.placement.pool.num_available
    steps.add("a", 10)
    steps.add("b", 10)
    steps.step()
    steps.scheduler.abort([0, 77])
    assert steps.step() == {"b": 1}
    steps.scheduler.abort([1])
    assert not steps.scheduler.has_work
    assert steps.scheduler.placement.pool.num_available == free
