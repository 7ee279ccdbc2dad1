from __future__ import annotations

import pytest
from torch import nn

from octavo.execution.cpu_threads import useful_threads


@pytest.mark.parametrize(
    ("size", "threads"),
    [(64, 1), (512, 1), (1024, 2), (1536, 4), (4096, 16)],
    ids=["tiny", "1 MiB", "4 MiB", "9 MiB", "64 MiB"],
)
def test_a_thread_is_worth_two_mib_of_an_average_matrix(size, threads) -> None:
    layers = nn.ModuleList([nn.Linear(size, size, device="meta"), nn.LayerNorm(4)])
    assert useful_threads(layers, most=16) == threads


def test_a_model_without_matrices_has_one_thread() -> None:
    assert useful_threads(nn.LayerNorm(4), most=16) == 1
