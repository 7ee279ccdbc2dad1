"""Masks of a step: together where a backend can, and nobody waits for a slow one twice."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from octavo.errors import ParameterError
from octavo.guided import sequence
from octavo.guided.sequence import CompiledGuide, GuidedSequence, MaskFiller


class Together:
    """A state that allows one token; whatever fills its mask is written down."""

    def __init__(self, token: int, calls: list[list[int]], *, wait=None, error=None) -> None:
        self.token, self.calls, self.wait, self.error = token, calls, wait, error

    def start(self):
        return self

    def forced(self) -> list[int]:
        return []

    def accept(self, token: int) -> bool:
        return True

    def is_finished(self) -> bool:
        return False

    def fill_bitmask(self, row) -> None:
        self.calls.append([self.token])
        self._fill(row)

    def fill_bitmasks(self, states, rows_MW):
        self.calls.append([state.token for state in states])
        for state, row in zip(states, rows_MW, strict=True):
            state._fill(row)
        return [state.error for state in states]

    def _fill(self, row) -> None:
        if self.wait is not None:
            self.wait.wait(20)
        row[0] = 1 << self.token


@pytest.fixture
def filler():
    filler = MaskFiller()
    yield filler
    filler.close()


def sequences(*states: Together) -> list[GuidedSequence]:
    return [GuidedSequence(CompiledGuide(state), 32) for state in states]


def test_a_backend_that_can_fills_all_masks_in_one_call(filler) -> None:
    calls: list[list[int]] = []
    some = sequences(*(Together(token, calls) for token in (3, 1, 2)))
    filler.fill(some, among_others=False)
    assert calls == [[3, 1, 2]]
    assert [int(each.mask_W[0]) for each in some] == [8, 2, 4]
    assert all(each.is_current for each in some)


def test_what_keeps_one_from_being_filled_is_its_own_end(filler) -> None:
    calls: list[list[int]] = []
    refused = ParameterError("not now")
    good, bad = sequences(Together(1, calls), Together(2, calls, error=refused))
    filler.fill([good, bad], among_others=False)
    assert bad.error is refused
    assert good.error is None
    assert np.flatnonzero(good.mask_W).tolist() == [0]


def test_a_call_that_raises_is_made_again_for_each_alone(filler) -> None:
    class Panic(Together):
        def fill_bitmasks(self, states, rows_MW):
            raise SystemExit("panic")

        def fill_bitmask(self, row) -> None:
            if self.error is not None:
                raise self.error
            super().fill_bitmask(row)

    good, bad = sequences(Panic(1, []), Panic(2, [], error=SystemExit("panic")))
    filler.fill([good, bad], among_others=False)
    assert good.error is None
    assert int(good.mask_W[0]) == 2
    assert isinstance(bad.error, RuntimeError)


def test_a_call_that_does_not_answer_for_each_is_made_again_for_each_alone(filler) -> None:
    class Short(Together):
        def fill_bitmasks(self, states, rows_MW):
            return super().fill_bitmasks(states, rows_MW)[1:]

    calls: list[list[int]] = []
    some = sequences(Short(1, calls), Short(2, calls))
    filler.fill(some, among_others=False)
    assert calls == [[1, 2], [1], [2]]
    assert [int(each.mask_W[0]) for each in some] == [2, 4]
    assert all(each.is_current for each in some)


def test_after_a_late_call_all_are_filled_alone_once_and_only_the_slow_one_is_late_again(
    filler, monkeypatch
) -> None:
    calls: list[list[int]] = []
    gate = threading.Event()
    quick, slow, other = some = sequences(
        Together(1, calls), Together(2, calls, wait=gate), Together(3, calls)
    )
    filler.fill(some, among_others=False)
    assert calls == [[1, 2, 3]]
    assert not any(each.is_current for each in some)
    gate.set()
    filler.fill(some, among_others=False)
    monkeypatch.setattr(sequence, "MASK_SECONDS", 5.0)
    filler.fill(some, among_others=False)
    assert all(each.is_current for each in some)
    monkeypatch.setattr(sequence, "MASK_SECONDS", 0.5)
    gate.clear()
    for each in some:
        each.accept(0)
    filler.fill(some, among_others=False)
    assert sorted(calls[1:]) == [[1], [2], [3]]
    assert (quick.is_current, slow.is_current, other.is_current) == (True, False, True)
    for each in (quick, other):
        each.accept(0)
    filler.fill(some, among_others=False)
    assert calls[4:] == [[1, 3]]
    gate.set()
