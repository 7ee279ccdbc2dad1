"""Steps under way on several stages: a row that samples in step s runs again from s + p."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from mutants import mutated
from octavo.scheduling import corrections, repeated, scheduler, slots
from octavo.scheduling.slots import Yields
from scheduling_cases import Case
from scheduling_walks import walk
from stepwise import Steps

pytestmark = pytest.mark.usefixtures("quiet")

CASES = [
    Case("full", "recompute", "fcfs", 3, num_blocks=30, num_stages=2),
    Case("full", "swap", "priority", 5, has_processors=True, num_stages=4),
    Case("mixed", "swap", "fcfs", 5, num_blocks=20, most_of_prompt=3, num_stages=4),
    Case("window", "recompute", "priority", 3, yields=Yields(1, 3), num_stages=2),
    Case("cross", "swap", "fcfs", 5, num_blocks=12, yields=Yields(0, 4), num_stages=4),
    Case("full", "recompute", "fcfs", 3, num_blocks=40, has_store=True, num_stages=2),
    Case("full", "swap", "fcfs", 4, num_blocks=40, yields=Yields(1, 4), num_stages=4),
    Case("all", "recompute", "fcfs", 3, num_blocks=12, num_stages=2),
    Case("state", "swap", "priority", 5, yields=Yields(0, 4), num_logged=4, num_stages=4),
]
USERS = {slots: "SlotTable", corrections: "Corrections", repeated: "RepeatedSteps"}
MISTAKES = {
    "runs rows whose tokens are under way": (
        slots,
        "return slots[self.ready_step_S[slots] <= self.reached_step]",
        "return slots",
    ),
    "runs rows a step too soon": (
        slots,
        "step_id + self.num_stages",
        "step_id + self.num_stages - 1",
    ),
    "gives a slot away to which tokens are under way": (
        slots,
        "self.ready_step_S[self._free_slots[place]] <= self.reached_step",
        "True",
    ),
    "corrects what a step then overwrites": (
        corrections,
        "slot_table.ready_step_S[slot] > slot_table.reached_step",
        "False",
    ),
    "repeats the last step": (repeated, "self._steps[0]", "self._steps[-1]"),
    "repeats steps while other rows wait": (
        repeated,
        "return num_rows == len(slot_table.sequences) - slot_table.num_free",
        "return True",
    ),
    "takes steps for over that are not": (
        scheduler,
        "self.slot_table.num_stages - self.num_under_way",
        "self.slot_table.num_stages",
    ),
}


@pytest.mark.parametrize(
    "num_walks", [6, pytest.param(200, marks=pytest.mark.slow)], ids=["quick", "8000 steps"]
)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_rows_of_several_stages_keep_the_references_and_the_tokens(case, num_walks) -> None:
    seen = Counter()
    for number in range(num_walks):
        walk(case, number, seen)
    if num_walks >= 200:
        facts = ["guided", "put off", "forked"]
        facts += ["steps", "new blocks", "left", "ended"] * (case.yields == (1, 1))
        assert [fact for fact in facts if seen[fact] < 10] == []


def walk_all() -> None:
    for number, case in itertools.product(range(40), CASES):
        walk(case, number, Counter())


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, old, new = MISTAKES[name]
    made = mutated(module, old, new)
    if module is scheduler:
        monkeypatch.setattr("scheduling_world.Scheduler", made.Scheduler)
    else:
        monkeypatch.setattr(scheduler, USERS[module], getattr(made, USERS[module]))
    with pytest.raises((AssertionError, IndexError, ValueError, KeyError)):
        walk_all()


def test_rows_fall_into_as_many_groups_as_there_are_stages() -> None:
    steps = Steps(num_stages=4, async_depth=5)
    for number in range(8):
        steps.add(str(number), 2, max_tokens=20)
    records = []
    for number in range(4):
        rows, record = steps.plan()
        assert rows == {str(2 * number): 2, str(2 * number + 1): 2}
        records.append(record)
    for number in range(12):
        rows, record = steps.plan()
        group = number % 4
        assert rows == {str(2 * group): 1, str(2 * group + 1): 1}
        records.append(record)
        steps.end(records.pop(0))


def test_a_newcomer_joins_the_group_that_lacks_a_row() -> None:
    steps = Steps(num_stages=2, async_depth=3)
    for name, max_tokens in (("a", 20), ("b", 20), ("c", 2), ("d", 20)):
        steps.add(name, 2, max_tokens=max_tokens)
    planned = []
    for number in range(6):
        if number == 4:
            steps.add("e", 2)
        rows, record = steps.plan()
        planned.append(list(rows))
        steps.end(record)
    assert planned == [["a", "b"], ["c", "d"], ["a", "b"], ["c", "d"], ["a", "b"], ["d", "e"]]


def test_chunks_of_a_prompt_follow_in_consecutive_steps() -> None:
    steps = Steps(num_stages=4, async_depth=5, max_num_batched_tokens=8)
    steps.add("long", 20)
    assert [steps.plan()[0] for _ in range(4)] == [{"long": 8}, {"long": 8}, {"long": 4}, {}]


def test_a_row_alone_runs_again_once_its_last_step_is_over() -> None:
    steps = Steps(num_stages=4, async_depth=5)
    steps.add("alone", 3)
    for _ in range(5):
        rows, record = steps.plan()
        assert list(rows) == ["alone"]
        assert steps.plan() == ({}, None)
        steps.end(record)


def test_each_group_repeats_its_own_step() -> None:
    steps = Steps(num_stages=2, async_depth=3)
    for name in "abcd":
        steps.add(name, 2, max_tokens=20)
    repeats = []
    for _ in range(8):
        plan, record = steps.scheduler.schedule()
        repeats.append(plan.repeats)
        steps.end(record)
    assert repeats == [0, 0, 0, 0, 3, 4, 3, 4]
