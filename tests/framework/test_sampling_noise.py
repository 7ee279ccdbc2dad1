from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from octavo_kernels.sample.noise import log_exponential, mix, row_keys
from sampling_reference import hashed_log_exponential


def units(seeds: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
    """The noise as numbers uniform in (0, 1): [rows, tokens]."""
    seed_G2 = seeds.to(torch.int64).view(-1, 1).contiguous().view(torch.int32).view(-1, 2)
    keys = row_keys(seed_G2, positions.to(torch.int32))
    return -torch.expm1(-log_exponential(keys, mix(tokens.to(torch.int32))[None]).double().exp())


def test_noise_is_the_hash_of_seed_position_and_token() -> None:
    for seed, position, token in [
        (0, 1, 0),
        (-1, 7, 31999),
        (2**63 - 1, 131071, 5),
        (42, 3, 128255),
    ]:
        low_high = np.array([seed & (2**64 - 1)], np.uint64).view(np.int32)
        keys = row_keys(torch.tensor(low_high)[None], torch.tensor([position], dtype=torch.int32))
        noise = log_exponential(keys, mix(torch.tensor([[token]], dtype=torch.int32)))
        assert noise.item() == pytest.approx(
            hashed_log_exponential(seed, position, token), abs=1e-5
        )


@pytest.mark.parametrize("varying", ["seed", "high word", "position", "token"])
def test_noise_is_uniform_along_each_argument(varying: str) -> None:
    steps, one = torch.arange(100_000), torch.ones(1)
    arguments = {
        "seed": (steps, one.expand(100_000), one),
        "high word": (steps << 32, one.expand(100_000), one),
        "position": (one, steps, one),
        "token": (one, one, steps),
    }
    counts = torch.histc(units(*arguments[varying]), 256, 0.0, 1.0)
    assert counts.sum() == 100_000
    assert chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("lag", [1, 2, 64, 4096])
@pytest.mark.parametrize("varying", ["seed", "position", "token"])
def test_noise_of_neighbours_is_independent(varying: str, lag: int) -> None:
    steps, one = torch.arange(60_000 + lag), torch.ones(1)
    arguments = {
        "seed": (steps, one.expand(60_000 + lag), one),
        "position": (one, steps, one),
        "token": (one, one, steps),
    }
    cells = (units(*arguments[varying]).flatten() * 16).long()
    counts = torch.bincount(cells[:-lag] * 16 + cells[lag:], minlength=256)
    assert chisquare(counts).pvalue > 1e-3


def test_the_check_of_independence_sees_a_weak_hash() -> None:
    steps = torch.arange(60_001)
    weak = ((steps * 0x9E3779B1) % 2**32).double() / 2**32  # one multiplication and no mixing
    cells = (weak * 16).long()
    assert chisquare(torch.bincount(cells[:-1] * 16 + cells[1:], minlength=256)).pvalue < 1e-9


def test_noise_is_finite_at_both_ends_and_resolves_rare_tokens() -> None:
    seeds, positions, tokens = torch.arange(64), torch.arange(64), torch.arange(40_000)
    seed_G2 = seeds.view(-1, 1).contiguous().view(torch.int32).view(-1, 2)
    keys = row_keys(seed_G2, positions.to(torch.int32))
    noise = log_exponential(keys, mix(tokens.to(torch.int32))[None])
    assert noise.isfinite().all()
    assert noise.max() < 3.0
    assert noise.min() < -13.0  # of 2.5 million exponentials the least is near exp(-14.7)
