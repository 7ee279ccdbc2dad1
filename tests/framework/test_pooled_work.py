"""Texts that become vectors, under random operations: each is told once, right, or why not."""

from __future__ import annotations

import time
from collections import Counter

import numpy as np
import pytest

import pooled_world
from mutants import mutated
from octavo.pooled_calls import PooledCall
from octavo.scheduling import pooled_work, texts
from octavo.scheduling.pooled_work import PooledWork
from pooled_world import POISON, STEP_TOKENS, Nobody, PooledWorld, packed, walk

pytestmark = pytest.mark.usefixtures("quiet")

FACTS = (
    "long texts",
    "raised",
    "raised before others",
    "of several calls",
    "errors",
    "aborted under way",
    "aborted in halves",
)


def test_any_order_of_operations_tells_each_text_once() -> None:
    seen: Counter[str] = Counter()
    for number in range(60):
        walk(number, seen)
    assert [fact for fact in FACTS if seen[fact] < 3] == []


def test_a_text_that_makes_its_step_raise_is_found_by_halves_and_fails_alone() -> None:
    world = PooledWorld(Counter())
    world.add([(1,)] * 7 + [(POISON,)] + [(1,)] * 8)
    world.drain()
    assert [plan.num_rows for plan in world.plans] == [16, 8, 8, 4, 4, 2, 2, 1, 1]
    assert world.got[0][7] is None
    assert sum(vector is None for vector in world.got[0].values()) == 1


def test_a_step_that_raised_takes_nothing_from_those_behind_it() -> None:
    world = PooledWorld(Counter())
    world.add([(POISON,)])
    world.step()
    world.add([(1, 2)])
    world.drain()
    assert [plan.num_rows for plan in world.plans] == [1, 1]


@pytest.mark.parametrize("num_bulk", [1, 3, 10])
def test_a_query_beside_bulk_jobs_is_in_the_next_step(num_bulk: int) -> None:
    world = PooledWorld(Counter())
    for _ in range(num_bulk):
        world.add([(1, 2, 3, 4, 5, 6)] * 50)
    for _ in range(7):
        world.step()
        world.step()
        before = len(world.plans)
        world.add([(9,)])
        world.step()
        world.step()
        assert any(9 in plan.buffer[: plan.num_tokens] for plan in world.plans[before:][:1])
    world.drain()


def test_large_calls_take_turns_by_tokens() -> None:
    world = PooledWorld(Counter())
    long = world.add([(1,) * STEP_TOKENS] * 40)
    short = world.add([(2,)] * 100)
    while len(world.plans) < 8:
        world.step()
    shares = Counter(token for plan in world.plans for token in plan.buffer[: plan.num_tokens])
    assert shares[2] == shares[1] == 4 * STEP_TOKENS
    assert (long, short) == (0, 1)
    world.drain()


def test_the_tokens_of_texts_that_have_run_are_not_kept() -> None:
    world = PooledWorld(Counter())
    for _ in range(200):
        world.add([(1,) * 10] * 3)
        world.step()
    queue = world.work._queues._queues[texts.SHARED]
    assert len(queue._merge().ids) <= 10 * (queue.num_texts + 3)


def test_a_step_of_1024_texts_is_planned_in_half_a_millisecond() -> None:
    work = PooledWork(max_step_tokens=16_384, max_model_len=512, vocab_size=99, faults=Nobody())
    rng, seconds = np.random.default_rng(0), []
    for call in range(30):
        lengths = rng.integers(8, 24, 1024)
        ids = rng.integers(0, 99, lengths.sum()).tolist()
        work.add(
            [
                PooledCall(
                    call=call,
                    num_texts=1024,
                    token_ids=packed(ids),
                    lengths=packed(lengths.tolist()),
                )
            ]
        )
        start = time.perf_counter()
        plan, _ = work.plan()
        seconds.append(time.perf_counter() - start)
        work.abort([call])
    assert plan.num_rows > 1000
    assert min(seconds) < 5e-4


WORK_MUTANTS = {
    "tells calls that were aborted": (
        "if len(part) and int(texts.calls[part[0]]) in self._num_left:",
        "if len(part):",
    ),
    "runs halves of calls that were aborted": (
        "live_N = self._live(batch.texts)",
        "live_N = self._live(batch.texts) | (batch.texts.calls >= 0)",
    ),
    "tells again what has an error": (
        "self._by_call(texts, ~bad_N)",
        "self._by_call(texts, bad_N | True)",
    ),
    "tells errors of calls that were aborted": (" if rows.call not in ids", ""),
    "runs a text that is too long": ("| (batch.texts.lengths > self._max_model_len)", ""),
    "runs ids out of range": ("wrong_N[texts[outside_T]] = True", "pass"),
    "drops a step that raised": ("self._halves += reversed(record.batch.halves())", "pass"),
    "fails all texts of a step": ("if texts.num_texts == 1:", "if texts.num_texts >= 1:"),
    "leaves out where second parts begin": (
        "texts.seconds if (texts.seconds < texts.lengths).any() else NO_INTS",
        "NO_INTS",
    ),
    "leaves out what is skipped": ("texts.skips if texts.skips.any() else NO_INTS", "NO_INTS"),
    "leaves out whether vectors have length 1": (
        "texts.unit_lengths if texts.unit_lengths.any() else NO_INTS",
        "NO_INTS",
    ),
    "gives all of a vector": ("rows_NW[:, :width] if width else rows_NW", "rows_NW"),
    "numbers slices from 0": (
        "np.arange(call.first, call.first + count, dtype=np.int32)",
        "np.arange(count, dtype=np.int32)",
    ),
    "forgets steps under way": (
        "return bool(waits) or self._num_under_way > 0",
        "return bool(waits)",
    ),
}
TEXT_MUTANTS = {
    "cuts halves at the wrong token": (
        "border = int(self.texts.starts[middle])",
        "border = int(self.texts.starts[middle]) + 1",
    ),
    "leaves the second half's tokens where they were": (
        "last._replace(starts=last.starts - border)",
        "last",
    ),
    "joins without moving": ("starts=batch.texts.starts + num_tokens", "starts=batch.texts.starts"),
    "sorts texts and not their tokens": (
        'batch = batch.some(np.argsort(-batch.texts.lengths, kind="stable"))',
        "batch = TextBatch(batch.texts.at(np.argsort(-batch.texts.lengths)), batch.ids)",
    ),
    "lets no long text begin": ("max(count, 1) if at_least_one else count", "count"),
    "fills a step too far": ("part = queue.take(min(most, room)", "part = queue.take(most"),
    "keeps texts of calls that were aborted": (
        "left = waiting.texts.at(waiting.texts.calls != call)",
        "left = waiting.texts",
    ),
    "lets a large call go first again": ("self.num_served += len(taken.ids)", "pass"),
    "does not sort": ("if (np.diff(batch.texts.lengths) > 0).any():", "if False:"),
    "moves tokens too far": (
        "starts=waiting.texts.starts - first)",
        "starts=waiting.texts.starts)",
    ),
}


def everything() -> None:
    test_any_order_of_operations_tells_each_text_once()
    test_large_calls_take_turns_by_tokens()


@pytest.mark.parametrize("name", [*WORK_MUTANTS, *TEXT_MUTANTS])
def test_mistakes_are_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name in WORK_MUTANTS:
        made = mutated(pooled_work, *WORK_MUTANTS[name])
        monkeypatch.setattr(pooled_world.pooled_work, "PooledWork", made.PooledWork)
    else:
        made = mutated(texts, *TEXT_MUTANTS[name])
        monkeypatch.setattr(pooled_work, "TextQueues", made.TextQueues)
        monkeypatch.setattr(pooled_work, "TextBatch", made.TextBatch)
        monkeypatch.setattr(pooled_work, "Texts", made.Texts)
    with pytest.raises((AssertionError, KeyError, IndexError, ValueError, TypeError)):
        everything()
