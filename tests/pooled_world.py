"""Texts that become vectors on a device that keeps nothing, with what each text must give."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from functools import partial

import numpy as np

from octavo.messages import StepOutputs
from octavo.pooled_calls import PooledCall
from octavo.scheduling import pooled_work
from octavo.steps.plan import StepResult, VectorArrays
from octavo.steps.pooled_plan import PooledPlan, PooledSections

VOCAB, MAX_LEN, STEP_TOKENS, WIDTH = 50, 40, 24, 4
POISON, NOT_FINITE = 13, 17
"""Tokens that make a step raise, and a vector wrong."""
Text = tuple[int, ...]


class Nobody:
    def blame_vector(self) -> Exception:
        return RuntimeError("not finite")

    def name(self, error: BaseException) -> BaseException:
        return error


def vector_of(ids: Text, second: int, skip: int, width: int, unit: bool) -> list[float]:
    """Depends on all that a text comes with, and on the order of its tokens."""
    order = sum((place + 1) * token for place, token in enumerate(ids))
    vector = [float(order), float(len(ids) - second), float(skip), 100.0 + unit]
    return vector[:width] if width else vector


def run(plan: PooledPlan) -> StepResult:
    """What a device makes of the buffer alone."""
    sizes = plan.sizes
    parts = PooledSections._make(np.split(plan.buffer, np.cumsum(sizes)[:-1]))
    assert len(plan.buffer) == sum(sizes)
    assert (np.diff(parts.query_starts) == plan.query_lens).all()
    assert plan.num_tokens == len(parts.ids) == parts.query_starts[-1]
    if POISON in parts.ids:
        raise RuntimeError("poison")
    rows, is_finite = [], []
    for row, part in enumerate(np.split(parts.ids, parts.query_starts[1:-1])):
        ids = tuple(part.tolist())
        second = int(parts.seconds[row]) if sizes.seconds else len(ids)
        skip = int(parts.skips[row]) if sizes.skips else 0
        unit = bool(parts.unit_lengths[row]) if sizes.unit_lengths else False
        rows.append(vector_of(ids, second, skip, 0, unit))
        is_finite.append(NOT_FINITE not in ids)
    return StepResult(
        tokens_RK=np.zeros((0, 1), np.int32),
        vectors=VectorArrays(rows_RW=np.array(rows, np.float32), is_finite_R=np.array(is_finite)),
    )


class PooledWorld:
    """Work with what each text of each call must give; ``seen`` counts what has happened."""

    def __init__(self, seen: Counter[str], depth: int = 2) -> None:
        self.work = pooled_work.PooledWork(
            max_step_tokens=STEP_TOKENS, max_model_len=MAX_LEN, vocab_size=VOCAB, faults=Nobody()
        )
        self.depth, self.seen = depth, seen
        self.under_way: deque[tuple[pooled_work.PooledRecord, Callable[[], StepResult]]] = deque()
        self.plans: list[PooledPlan] = []
        self.faults = 0
        """Steps to come that raise whatever is in them."""
        self.expected: dict[int, dict[int, list[float] | None]] = {}
        """The vector of each text, by call and number; None: an error."""
        self.got: dict[int, dict[int, list[float] | None]] = {}
        self.unsent: list[PooledCall] = []
        """Slices that come later."""
        self.aborted: set[int] = set()
        self.alone: set[tuple[int, int]] = set()
        """Texts that were alone in a step that raised."""
        self.ended: set[int] = set()

    def add(
        self,
        texts: list[Text],
        *,
        seconds: list[int] | None = None,
        skips: list[int] | None = None,
        width: int = 0,
        unit: bool = False,
        slice_texts: int | None = None,
    ) -> int:
        """Queue a call; of slices the first, and the others by ``send``."""
        call = len(self.expected)
        self.got[call], self.expected[call] = {}, {}
        for number, ids in enumerate(texts):
            second = len(ids) if seconds is None else seconds[number]
            skip = 0 if skips is None else skips[number]
            fits = 1 <= len(ids) <= MAX_LEN and all(0 <= token < VOCAB for token in ids)
            fails = not fits or POISON in ids or NOT_FINITE in ids
            expected = None if fails else vector_of(ids, second, skip, width, unit)
            self.expected[call][number] = expected
        size = slice_texts or len(texts)
        for first in range(0, len(texts), size):
            some = slice(first, first + size)
            self.unsent.append(
                PooledCall(
                    call=call,
                    num_texts=len(texts),
                    first=first,
                    token_ids=packed([token for ids in texts[some] for token in ids]),
                    lengths=packed([len(ids) for ids in texts[some]]),
                    seconds=b"" if seconds is None else packed(seconds[some]),
                    skips=b"" if skips is None else packed(skips[some]),
                    width=width,
                    unit_length=unit,
                )
            )
        self.send(call)
        return call

    def send(self, call: int) -> None:
        """Send a call's next slice."""
        for each in self.unsent:
            if each.call == call:
                self.unsent.remove(each)
                self.work.add([each])
                return

    def abort(self, call: int) -> None:
        self.unsent = [each for each in self.unsent if each.call != call]
        self.work.abort([call])
        self.aborted.add(call)

    def live(self) -> list[int]:
        return [call for call in self.expected if call not in self.ended | self.aborted]

    def step(self) -> None:
        """As EngineCore's."""
        planned = None
        if len(self.under_way) < self.depth:
            planned = self.work.plan()
            if planned is not None:
                plan, record = planned
                assert not self.aborted.intersection(record.batch.texts.calls.tolist())
                self.check_plan(plan)
                self.under_way.append((record, partial(run, plan)))
        if planned is not None and len(self.under_way) < self.depth:
            self.take(self.work.take_events())
        elif self.under_way:
            self.collect()
        else:
            self.take(self.work.take_events())

    def check_plan(self, plan: PooledPlan) -> None:
        self.plans.append(plan)
        self.seen["long texts"] += plan.num_tokens > STEP_TOKENS
        assert plan.num_tokens <= STEP_TOKENS or plan.num_rows == 1
        assert plan.num_rows > 0
        assert (np.diff(plan.query_lens) <= 0).all(), "rows of equal length are not side by side"

    def collect(self) -> None:
        record, device = self.under_way.popleft()
        texts = record.batch.texts
        try:
            if self.faults:
                self.faults -= 1
                raise RuntimeError("a fault")
            result = device()
        except RuntimeError as error:
            if texts.num_texts == 1:
                self.alone.add((int(texts.calls[0]), int(texts.numbers[0])))
            self.seen["raised"] += 1
            later = [each for each, _ in self.under_way]
            self.seen["raised before others"] += bool(later)
            self.take(self.work.fail(record, later, error))
        else:
            self.seen["of several calls"] += len(set(texts.calls.tolist())) > 1
            self.take(self.work.apply(record, result))

    def take(self, outputs: StepOutputs) -> None:
        for rows in outputs.pooled:
            assert rows.call not in self.aborted, "told after the abort"
            assert rows.call not in self.ended, "told after the end"
            got, expected = self.got[rows.call], self.expected[rows.call]
            numbers = np.frombuffer(rows.numbers, np.int32).tolist()
            if numbers:
                vectors = np.frombuffer(rows.rows, np.float32).reshape(len(numbers), -1)
                for number, vector in zip(numbers, vectors.tolist(), strict=True):
                    assert number not in got, "told twice"
                    assert vector == expected[number]
                    got[number] = vector
            for error in rows.errors:
                assert error.number not in got, "told twice"
                assert expected[error.number] is None or (rows.call, error.number) in self.alone
                assert error.error_type == "ParameterError" or error.error
                got[error.number] = None
                self.seen["errors"] += 1
            assert rows.is_last == (got.keys() == expected.keys())
            if rows.is_last:
                self.ended.add(rows.call)

    def drain(self) -> None:
        for call in self.live():
            while any(each.call == call for each in self.unsent):
                self.send(call)
        for _ in range(5_000):
            if not self.work.has_work:
                break
            self.step()
        assert not self.work.has_work, "work is left over that never runs"
        assert self.ended | self.aborted == self.expected.keys()
        assert self.work.stats() == {"num_running": 0, "num_waiting": 0}
        assert not self.work._num_left


def packed(numbers: list[int]) -> bytes:
    return np.array(numbers, np.int32).tobytes()


def add(world: PooledWorld, rng: random.Random) -> None:
    if len(world.live()) >= 8:
        return
    count = rng.choice([1, 1, 2, 5, 33, 60])
    texts = []
    for _ in range(count):
        length = rng.choice([1, 2, 3, rng.randint(1, MAX_LEN)])
        ids = [rng.choice([1, 2, 3, 20, 49]) for _ in range(length)]
        if rng.random() < 0.05:
            ids[rng.randrange(length)] = rng.choice([POISON, NOT_FINITE, VOCAB, -1])
        texts.append(tuple(ids) if rng.random() > 0.03 else rng.choice([(), (1,) * (MAX_LEN + 1)]))
    pairs = rng.random() < 0.3
    world.add(
        texts,
        seconds=[rng.randint(0, len(ids)) for ids in texts] if pairs else None,
        skips=[rng.randint(0, 1) for _ in texts] if rng.random() < 0.3 else None,
        width=rng.choice([0, 0, 2]),
        unit=rng.random() < 0.5,
        slice_texts=rng.choice([None, 7, 16]),
    )


def send(world: PooledWorld, rng: random.Random) -> None:
    if world.unsent:
        world.send(rng.choice(world.unsent).call)


def step(world: PooledWorld, rng: random.Random) -> None:
    for _ in range(rng.choice([1, 2, 4, 8])):
        world.step()


def abort(world: PooledWorld, rng: random.Random) -> None:
    if live := world.live():
        call = rng.choice(live)
        world.seen["aborted under way"] += any(
            (record.batch.texts.calls == call).any() for record, _ in world.under_way
        )
        world.seen["aborted in halves"] += any(
            (half.texts.calls == call).any() for half in world.work._halves
        )
        world.abort(call)


def fault(world: PooledWorld, rng: random.Random) -> None:
    world.faults = rng.choice([1, 1, 3])


def walk(number: int, seen: Counter[str]) -> None:
    """Sixty operations in any order."""
    rng = random.Random(number)
    world = PooledWorld(seen, depth=rng.choice([1, 2, 3]))
    operations = [add, send, step, step, *rng.sample([abort, fault], rng.randint(0, 2))]
    try:
        for _ in range(60):
            rng.choice(operations)(world, rng)
        world.faults = 0
        world.drain()
    except Exception as error:
        error.add_note(f"in walk {number}")
        raise
