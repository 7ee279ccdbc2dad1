"""Rows that yield 0 to 4 tokens, under random operations, on a device that accepts as it likes."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

import scheduling_world
from mutants import mutated
from octavo.scheduling import bursts, corrections, packing, results, scheduler, slots
from octavo.scheduling.slots import Yields
from scheduling_cases import BURST_FACTS, Case
from scheduling_walks import walk

pytestmark = pytest.mark.usefixtures("quiet")

CASES = [
    Case("full", "recompute", "fcfs", 2, num_blocks=30, yields=Yields(0, 4)),
    Case("full", "swap", "priority", 2, has_processors=True, yields=Yields(1, 4)),
    Case("mixed", "swap", "fcfs", 3, most_of_prompt=3, yields=Yields(0, 4)),
    Case("window", "recompute", "priority", 1, yields=Yields(1, 3)),
    Case("cross", "swap", "fcfs", 2, num_blocks=12, yields=Yields(0, 4)),
    Case("state", "recompute", "fcfs", 2, yields=Yields(0, 4), num_logged=4),
    Case("state", "swap", "priority", 3, yields=Yields(0, 4), num_logged=4, most_of_prompt=3),
    Case("full", "recompute", "fcfs", 2, num_blocks=40, has_store=True, yields=Yields(0, 4)),
    Case("full", "recompute", "fcfs", 2, block_tokens=1, num_blocks=150, yields=Yields(0, 2)),
]
USERS = {
    slots: (scheduler, "SlotTable"),
    corrections: (scheduler, "Corrections"),
    packing: (scheduler, "Packing"),
    bursts: (results, "Bursts"),
    results: (scheduling_world, "StepResults"),
}
"""Who makes what a module has."""
TELLS_COMPUTED = """\
                diff.put_cells("computed", *at, slot_table.computed_S[[slot]])
"""
MISTAKES = {
    "takes the fewest for the most": (
        slots,
        "self.num_due_S[slots] * np.int32(self.yields.most)",
        "self.num_due_S[slots]",
    ),
    "takes the most for the fewest": (
        slots,
        "np.int32(self.yields.fewest)",
        "np.int32(self.yields.most)",
    ),
    "plans beyond the end": (
        slots,
        "= most = np.minimum(most, self.max_len_S[slots])",
        "= most",
    ),
    "has blocks for no draft": (
        slots,
        "ends += np.where(has_drafts, np.int32(self.yields.most - 1), np.int32(0))",
        "pass",
    ),
    "takes a token that is not computed for one that is": (
        slots,
        "self.confirmed_S[slots] = self.known_S[slots] - 1",
        "self.confirmed_S[slots] = self.known_S[slots]",
    ),
    "counts a step as under way that is over": (slots, "self.num_due_S[slots] -= 1", "pass"),
    "keeps the drafts of who was there before": (slots, "self.num_due_S[slot] = 0", "pass"),
    "keeps the drafts of what is put off": (corrections, "slot_table.num_due_S[slot] = 0", "pass"),
    "takes drafts of what is put off for computed": (
        corrections,
        "slot_table.computed_S[slot] = known",
        "pass",
    ),
    "does not tell what is computed of what is put off": (corrections, TELLS_COMPUTED, ""),
    "gives more drafts than a step has room for": (packing, "min(most_drafts, ", "max(0, "),
    "reads on behind a stop id": (bursts, "rows = np.delete(rows, [*ended])", "pass"),
    "reads what does not count": (bursts, "rows = rows[counts_R[rows] > place]", "pass"),
    "counts a token twice": (bursts, "told_R[rows] += 1", "told_R[rows] += 2"),
    "reads the first token again": (
        bursts,
        "slots[rows], tokens_RK[rows, place]",
        "slots[rows], tokens_RK[rows, 0]",
    ),
    "registers blocks of tokens that may be refused": (
        results,
        "confirmed = slot_table.confirmed_S[slots]",
        "confirmed = slot_table.computed_S[slots]",
    ),
    "does not settle what a step has brought": (
        results,
        "slot_table.settle(sampled_slots)",
        "pass",
    ),
    "mixes up whose log probabilities are whose": (
        results,
        "firsts = most * np.arange",
        "firsts = np.arange",
    ),
}


@pytest.mark.parametrize(
    "num_walks", [8, pytest.param(80, marks=pytest.mark.slow)], ids=["quick", "3200 steps"]
)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_rows_that_yield_several_tokens_keep_the_references_and_the_tokens(case, num_walks) -> None:
    seen = Counter()
    for number in range(num_walks):
        walk(case, number, seen)
    assert seen["bursts"] > 10
    if num_walks >= 80:
        unseen = {"yielded none"} if case.yields.fewest else set()
        assert [fact for fact in BURST_FACTS if seen[fact] < 10 and fact not in unseen] == []


def walk_all() -> None:
    for number, case in itertools.product(range(20), CASES):
        walk(case, number, Counter())


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, old, new = MISTAKES[name]
    user, what = USERS[module]
    monkeypatch.setattr(user, what, getattr(mutated(module, old, new), what))
    with pytest.raises((AssertionError, IndexError, ValueError, KeyError)):
        walk_all()
