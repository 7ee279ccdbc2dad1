"""Mistakes of the codec of plans, which the scheduling machine's device sees by what it is told.

The machine's own comparison of plans is off here.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from types import ModuleType

import pytest

import plan_crossing
from mutants import mutated
from octavo.errors import OctavoError
from octavo.scheduling import repeated, scheduler
from octavo.steps import plan_codec, plan_extras
from scheduling_cases import Case
from scheduling_walks import walk

CASES = [
    Case("full", "swap", "fcfs", 2, num_blocks=18, has_processors=True),
    Case("media", "recompute", "fcfs", 2, num_blocks=12),
    Case("mixed", "swap", "priority", 3, num_blocks=14),
]
USERS: dict[ModuleType, tuple[ModuleType, str]] = {
    repeated: (scheduler, "RepeatedSteps"),
    plan_codec: (plan_crossing, "PlanEncoder"),
    plan_extras: (plan_codec, "ExtrasEncoder"),
}
"""Who makes what a module has."""
DECODER = (plan_crossing, "PlanDecoder")
MISTAKES = {
    "repeats a step of other rows": (
        repeated,
        "repeats=plan.step_id,",
        "repeats=max(plan.step_id - 1, 1),",
        USERS[repeated],
    ),
    "counts the tokens of a repeated step from the wrong one": (
        plan_codec,
        "ahead = int(plan.context_lens[0]) - begun",
        "ahead = 1",
        USERS[plan_codec],
    ),
    "leaves out the diff of a repeated step": (
        plan_codec,
        "buffer=np.concatenate([words, rest]) if num_words else rest",
        "buffer=np.concatenate([words * 0, rest]) if num_words else rest",
        DECODER,
    ),
    "repeats the first diff too": (
        plan_codec,
        "rest = plan.buffer[2 * plan.sizes.diff_indices :]",
        "rest = plan.buffer",
        DECODER,
    ),
    "forgets that the host masks": (
        plan_codec,
        "awaits_masks=bool(flags & _Flag.AWAITS_MASKS)",
        "awaits_masks=False",
        DECODER,
    ),
    "takes one row's features for another's": (
        plan_codec,
        "features=words[lens_end:features_end]",
        "features=words[lens_end:features_end][::-1]",
        DECODER,
    ),
    "forgets who leaves": (
        plan_extras,
        "detach=plan.detach,",
        "detach=[],",
        USERS[plan_extras],
    ),
    "mixes up the items of a step": (
        plan_extras,
        "for each in plan.encode\n",
        "for each in plan.encode[:1] * len(plan.encode)\n",
        USERS[plan_extras],
    ),
    "loads no automaton twice": (
        plan_extras,
        "automata=[(load.first, payload(load.words)) for load in plan.automata]",
        "automata=[(load.first, payload(load.words)) for load in plan.automata[:1]]",
        USERS[plan_extras],
    ),
    "moves nothing where nobody comes": (
        plan_extras,
        "            or moves.copy\n",
        "",
        USERS[plan_extras],
    ),
}


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(plan_crossing, "assert_same", lambda *found: None)
    logging.getLogger("octavo").setLevel(logging.ERROR)
    yield
    logging.getLogger("octavo").setLevel(logging.NOTSET)


def walk_all() -> None:
    for number in range(40):
        for case in CASES:
            walk(case, number, Counter())


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, old, new, (user, what) = MISTAKES[name]
    monkeypatch.setattr(user, what, getattr(mutated(module, old, new), what))
    with pytest.raises((AssertionError, OctavoError, KeyError)):
        walk_all()
