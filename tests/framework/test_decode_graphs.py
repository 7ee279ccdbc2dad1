"""Recordings of decode steps, with a step that adds one to its slots' values."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from torch import Tensor

from octavo.execution.decode_graphs import DecodeGraphs

pytestmark = pytest.mark.gpu

DEVICE = torch.device("cuda", 0)
MAX_ROWS = 20
SIZES = [1, 2, 4, 8, 12, 16, 20]


class Counter:
    """A step, the values of slots, and the sizes it was called with on the host."""

    def __init__(self) -> None:
        self.values_S = torch.zeros(MAX_ROWS + 1, dtype=torch.int32, device=DEVICE)
        self.calls: list[int] = []

    def __call__(self, slots_R: Tensor) -> Tensor:
        self.calls.append(len(slots_R))
        values_R = self.values_S.index_select(0, slots_R) + 1
        self.values_S[slots_R] = values_R
        return values_R


def run(graphs: DecodeGraphs, step: Counter, slots: list[int]) -> list[int]:
    size = next(size for size in SIZES if size >= len(slots))
    slots_R = graphs.place(np.array(slots, np.int32), size, 0)
    with torch.inference_mode():
        return graphs.run(slots_R, "count", step)[: len(slots)].tolist()


def test_each_step_runs_once_whether_launched_or_replayed():
    graphs, step = DecodeGraphs(MAX_ROWS, MAX_ROWS, DEVICE), Counter()
    assert run(graphs, step, [3, 5, 6]) == [1, 1, 1]
    assert run(graphs, step, [5, 3, 1]) == [2, 2, 1]
    assert run(graphs, step, list(range(10))) == [1, 2, 1, 3, 1, 3, 2, 1, 1, 1]
    assert step.calls == [4, 4, 12, 12]  # each size as it is, and while it is recorded


def test_what_is_prepared_is_recorded_on_padding_once():
    graphs, step = DecodeGraphs(MAX_ROWS, MAX_ROWS, DEVICE), Counter()
    with torch.inference_mode():
        assert all(graphs.prepare(size, "count", step) for size in (20, 2, 20))
    assert step.calls == [20, 20, 2, 2]
    assert step.values_S[:-1].tolist() == [0] * 20  # all in the padding slot
    assert run(graphs, step, [0, 1]) == [1, 1]
    assert len(step.calls) == 4


def test_what_was_forgotten_is_recorded_anew():
    graphs, step = DecodeGraphs(MAX_ROWS, MAX_ROWS, DEVICE), Counter()
    run(graphs, step, [0])
    graphs.forget()
    other = Counter()
    assert [run(graphs, other, [0]) for _ in range(3)] == [[1], [2], [3]]
    assert other.calls == [1, 1]


def test_a_size_without_memory_is_launched_and_the_others_stay_recorded(caplog):
    graphs, step = DecodeGraphs(MAX_ROWS, MAX_ROWS, DEVICE), Counter()

    def step_without_memory(slots_R: Tensor) -> Tensor:
        if torch.cuda.is_current_stream_capturing() and len(slots_R) == 2:
            raise torch.OutOfMemoryError("no memory")
        return step(slots_R)

    with torch.inference_mode(), caplog.at_level(logging.WARNING):
        for slots in ([1], [1, 2], [1, 2], [1, 2, 3, 4]):
            slots_R = graphs.place(np.array(slots, np.int32), len(slots), 0)
            found = graphs.run(slots_R, "count", step_without_memory).tolist()
    assert found == [4, 3, 1, 1]
    assert step.calls == [1, 1, 2, 2, 4, 4]
    with torch.inference_mode():
        assert not graphs.prepare(2, "count", step_without_memory)
    assert step.calls == [1, 1, 2, 2, 4, 4, 2]  # others may wait for it
    assert len(caplog.records) == 1


def test_a_step_that_cannot_be_recorded_runs_as_it_is(caplog):
    graphs, counter = DecodeGraphs(MAX_ROWS, MAX_ROWS, DEVICE), Counter()

    def waiting_step(slots_R: Tensor) -> Tensor:
        values_R = counter(slots_R)
        values_R.sum().item()  # waits for the device
        return values_R

    with torch.inference_mode(), caplog.at_level(logging.WARNING):
        for _ in range(3):
            found = graphs.run(graphs.place(np.array([7], np.int32), 1, 0), "wait", waiting_step)
    assert found.tolist() == [3]
    assert "cannot be recorded" in caplog.text
    with torch.inference_mode():
        assert not graphs.prepare(2, "wait", waiting_step)
    assert torch.randn(4, device=DEVICE).isfinite().all()  # random numbers are drawn as before
