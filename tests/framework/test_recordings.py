"""Plans name recorded steps that all ranks have; who has them is decided in one place."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from msgspec.structs import replace

from decode_plans import again, decode_plan, ints
from octavo.execution.recordings import SIZES, Recordings
from octavo.messages import AdapterHead, PackedAdapter
from octavo.steps.loads import AdapterLoad, Span
from octavo.steps.plan import StepPlan
from octavo.steps.recording import Recording, StepKind
from octavo_kernels.row_features import Work

GREEDY = StepKind(True)


class Ranks:
    """Several that record what they are told to, but for sizes that one has no memory for."""

    def __init__(self, *too_large: int) -> None:
        self.too_large = too_large or (10_000,) * 2
        self.asked: list[list[Recording]] = [[] for _ in self.too_large]

    def prepare(self, recording: Recording) -> bool:
        for asked in self.asked:
            asked.append(recording)
        return recording.num_rows < min(self.too_large)


def recordings(
    prepare: Callable[[Recording], bool],
    *,
    num_slots: int = 20,
    adapters: bool = False,
    processors: bool = False,
) -> Recordings:
    return Recordings(
        prepare, num_slots=num_slots, has_adapters=adapters, has_processors=processors
    )


def greedy(step_id: int, num_rows: int, **more: object) -> StepPlan:
    return decode_plan(step_id, num_rows=num_rows, **{"work": Work(0), **more})


def test_the_first_steps_sizes_are_there_from_the_start_the_most_rows_first() -> None:
    ranks = Ranks()
    recordings(ranks.prepare).warm_up()
    sizes = [recording.num_rows for recording in ranks.asked[0]]
    assert sizes == [20, 20, 16, 8, 4, 2, 1]
    assert {recording.kind for recording in ranks.asked[0]} == {GREEDY}
    ranks = Ranks()
    recordings(ranks.prepare, adapters=True).warm_up()
    kinds = [recording.kind.has_adapters for recording in ranks.asked[0]]
    assert kinds == [True] * 7 + [False] * 7


def test_a_plan_names_the_smallest_recording_with_room_once_all_have_it() -> None:
    ranks = Ranks()
    book = recordings(ranks.prepare)
    plan = greedy(1, 9)
    lacking = book.name(plan)
    assert lacking == Recording(GREEDY, 12, 12)
    assert plan.recording is None
    book.prepare(lacking)
    for num_rows in (9, 12, 10):
        plan = greedy(2, num_rows)
        assert book.name(plan) is None
        assert plan.recording == lacking
    assert book.name(greedy(3, 13)) == Recording(GREEDY, 16, 16)
    assert ranks.asked == [[lacking]] * 2


def test_what_one_rank_could_not_record_no_plan_names_and_nobody_tries_again() -> None:
    ranks = Ranks(10_000, 16)
    book = recordings(ranks.prepare)
    large, small = book.name(greedy(1, 15)), book.name(greedy(1, 3))
    assert large is not None
    assert small is not None
    book.prepare(large)
    book.prepare(small)
    for plan, expected in ((greedy(2, 15), None), (greedy(3, 3), small)):
        assert book.name(plan) is None
        assert plan.recording == expected
    assert [len(asked) for asked in ranks.asked] == [2, 2]


def test_where_nothing_can_be_recorded_at_the_start_nobody_is_asked_again() -> None:
    ranks = Ranks(10_000, 0)
    book = recordings(ranks.prepare)
    book.warm_up()
    plan = greedy(1, 4, work=Work(3))
    assert book.name(plan) is None
    assert plan.recording is None
    assert not book.prepare_another()
    assert len(ranks.asked[0]) == 7


def test_one_that_raises_is_not_tried_again_either() -> None:
    def prepare(recording: Recording) -> bool:
        raise ValueError("a plugin's error")

    book = recordings(prepare)
    lacking = book.name(greedy(1, 4))
    assert lacking is not None
    with pytest.raises(ValueError, match="a plugin's"):
        book.prepare(lacking)
    assert book.name(greedy(2, 4)) is None


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"work": Work(5)}, StepKind(True, Work(5))),
        ({"masked": True}, StepKind(True, masked=True)),
        ({"has_adapters": True}, StepKind(True, has_adapters=True)),
        ({"num_logprobs": 0, "work": Work(5), "masked": True}, StepKind(False)),
        ({"awaits_masks": True, "has_adapters": True}, StepKind(False, has_adapters=True)),
    ],
)
def test_kinds_are_what_a_step_does_on_the_device(
    changes: dict[str, object], kind: StepKind
) -> None:
    assert recordings(Ranks().prepare).name(greedy(1, 2, **changes)) == Recording(kind, 2, 2)


def test_processors_stand_between_forward_and_sampling() -> None:
    book = recordings(Ranks().prepare, processors=True)
    assert book.name(greedy(1, 2)) == Recording(StepKind(False), 2, 2)


def test_steps_with_prompts_or_too_many_rows_run_eagerly() -> None:
    book = recordings(Ranks().prepare, num_slots=SIZES[-1] + 200)
    assert book.name(greedy(1, SIZES[-1] + 1)) is None
    assert book.name(greedy(1, SIZES[-1])) is not None
    prompt = greedy(1, 2, num_tokens=5, query_lens=ints(4, 1))
    assert book.name(prompt) is None
    assert prompt.recording is None


def test_repeated_steps_name_what_the_first_did_and_another_chain_its_own() -> None:
    ranks = Ranks()
    book = recordings(ranks.prepare)
    chains = [greedy(1, 2), greedy(2, 4)]
    for plan in chains:
        lacking = book.name(plan)
        assert lacking is not None
        book.prepare(lacking)
    for step_id in range(3, 9):
        first = chains[step_id % 2]
        plan = replace(again(first, step_id), work=Work(0))
        assert book.name(plan) is None
        assert plan.recording == Recording(GREEDY, first.num_rows, first.num_rows)
    assert len(ranks.asked[0]) == 2


def test_idle_time_prepares_all_sizes_of_the_kinds_that_there_were() -> None:
    ranks = Ranks(9, 10_000)
    book = recordings(ranks.prepare)
    assert not book.prepare_another()
    lacking = book.name(greedy(1, 2))
    assert lacking is not None
    book.prepare(lacking)
    while book.prepare_another():
        pass
    assert [recording.num_rows for recording in ranks.asked[1]] == [2, 20, 16, 12, 8, 4, 1]
    named = [book.name(plan) or plan.recording for plan in (greedy(2, 8), greedy(3, 9))]
    assert named == [Recording(GREEDY, 8, 8), None]


def test_adapters_that_come_let_idle_time_look_at_their_sizes_again() -> None:
    """They may add at other sites than those before them."""
    ranks = Ranks()
    book = recordings(ranks.prepare, num_slots=2, adapters=True)
    book.warm_up()
    assert not book.prepare_another()
    ranks.asked[0].clear()
    head = AdapterHead(content_hash="a", rank=1, dtype="float32", shapes={})
    load = AdapterLoad(Span(0, 1), PackedAdapter(head, memoryview(b"")))
    book.name(greedy(1, 2, adapters=[load], query_lens=np.ones(2, np.int32)))
    while book.prepare_another():
        pass
    assert [(each.kind.has_adapters, each.num_rows) for each in ranks.asked[0]] == [
        (True, 2),
        (True, 1),
    ]
